from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import optuna
import pytest

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import Grid, LogUniform, QUniform, Uniform
from cerebro.search.sampler import (
    SAMPLERS,
    GridSampler,
    RandomSampler,
    Sampler,
    describe_search,
    make_sampler,
)
from cerebro.search.space import parse_space
from cerebro.testing.sampler_contract import SamplerContract
from cerebro.types import Params, TrialStatus

LISTED = parse_space({"lr": [0.1, 0.01], "layers": [[64], [64, 64]], "act": "relu"})
MIXED = parse_space(
    {"lr": LogUniform(1e-4, 1e-1), "batch_size": QUniform(16, 256, 16), "layers": [[64], [32]]}
)


class TestGridSampler(SamplerContract):
    names = ("lr", "layers", "act")

    def make(self) -> Sampler:
        return GridSampler(LISTED)


class TestRandomSampler(SamplerContract):
    names = ("lr", "batch_size", "layers")

    def make(self) -> Sampler:
        return RandomSampler(MIXED, seed=0, num_trials=20)


def all_of(sampler: Sampler, count: int) -> list[Params]:
    proposals = [sampler.ask(number) for number in range(count)]
    return [params for params in proposals if params is not None]


def test_a_grid_is_the_product_in_declaration_order() -> None:
    space = parse_space({"b": [1, 2], "a": Grid(["x", "y"]), "c": 0})
    assert all_of(GridSampler(space), 10) == [
        {"b": 1, "a": "x", "c": 0},
        {"b": 1, "a": "y", "c": 0},
        {"b": 2, "a": "x", "c": 0},
        {"b": 2, "a": "y", "c": 0},
    ]


def test_the_grid_of_an_empty_space_is_one_trial() -> None:
    assert all_of(GridSampler(parse_space({})), 10) == [{}]


def test_trials_of_a_grid_share_no_lists() -> None:
    first, second = all_of(GridSampler(parse_space({"layers": [[64]], "lr": [1, 2]})), 10)
    assert first["layers"] is not second["layers"]


def test_a_huge_grid_costs_nothing_until_it_is_asked() -> None:
    space = parse_space({f"p{i}": list(range(100)) for i in range(10)})
    sampler = GridSampler(space)
    assert sampler.num_trials == 100**10
    assert sampler.ask(100**10 - 1) == {f"p{i}": 99 for i in range(10)}


@pytest.mark.parametrize("name", ["grid", "random"])
def test_a_proposal_does_not_depend_on_those_asked_before(name: str) -> None:
    num_trials = None if name == "grid" else 5
    later = make_sampler(name, LISTED, num_trials=num_trials).ask(3)
    assert all_of(make_sampler(name, LISTED, num_trials=num_trials), 4)[3] == later


def test_random_parameters_are_not_correlated() -> None:
    space = parse_space({f"p{i}": Uniform(0, 1) for i in range(5)})
    trials = all_of(RandomSampler(space, seed=0, num_trials=2000), 2000)
    matrix = np.corrcoef(np.array([list(params.values()) for params in trials]).T)
    assert np.abs(matrix - np.eye(5)).max() < 0.08


def test_successive_random_trials_are_not_correlated() -> None:
    space = parse_space({"p": Uniform(0, 1)})
    trials = all_of(RandomSampler(space, seed=0, num_trials=2000), 2000)
    values = np.array([params["p"] for params in trials])
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 0.08


def test_two_random_choices_are_not_in_lock_step() -> None:
    space = parse_space({"a": [0, 1, 2], "b": [0, 1, 2]})
    trials = all_of(RandomSampler(space, seed=0, num_trials=300), 300)
    assert {(params["a"], params["b"]) for params in trials} == {
        (a, b) for a in range(3) for b in range(3)
    }


def test_adding_a_parameter_leaves_the_others_as_they_were() -> None:
    more = parse_space({"new": Uniform(0, 1), **MIXED})
    before = all_of(RandomSampler(MIXED, seed=3, num_trials=10), 10)
    after = all_of(RandomSampler(more, seed=3, num_trials=10), 10)
    assert [{name: params[name] for name in MIXED} for params in after] == before


def test_more_trials_leave_the_first_as_they_were() -> None:
    few = all_of(RandomSampler(MIXED, seed=3, num_trials=5), 5)
    assert all_of(RandomSampler(MIXED, seed=3, num_trials=50), 50)[:5] == few


def test_another_seed_gives_other_trials() -> None:
    one = all_of(RandomSampler(MIXED, seed=0, num_trials=5), 5)
    assert all_of(RandomSampler(MIXED, seed=1, num_trials=5), 5) != one


def test_random_draws_are_the_same_in_every_version() -> None:
    params = RandomSampler(MIXED, seed=0, num_trials=1).ask(0)
    # The logarithm's last digit is the platform's.
    expected = {"lr": pytest.approx(0.010795635036082078), "batch_size": 48, "layers": [32]}
    assert params == expected


def test_random_search_draws_from_a_grid_domain() -> None:
    space = parse_space({"lr": Grid([0.1, 0.01])})
    trials = all_of(RandomSampler(space, seed=0, num_trials=50), 50)
    assert {params["lr"] for params in trials} == {0.1, 0.01}


def test_a_quantised_batch_size_is_an_int() -> None:
    trials = all_of(RandomSampler(MIXED, seed=0, num_trials=50), 50)
    assert {type(params["batch_size"]) for params in trials} == {int}


def test_being_told_changes_nothing_for_random_search() -> None:
    sampler = RandomSampler(MIXED, seed=0, num_trials=5)
    before = sampler.ask(1)
    sampler.tell(0, sampler.ask(0) or {}, Outcome((0.5,), TrialStatus.FINISHED))
    assert sampler.ask(1) == before


@pytest.mark.parametrize(
    ("search", "num_trials", "message"),
    [
        ("gird", None, "unknown search 'gird'. Known: grid, nsga2, random, sobol, tpe. Did you"),
        ("tpe", None, "search='tpe' needs num_trials"),
        (None, None, "`search` must be a name, a mapping with a name and options, or a sampler"),
        ({"startup_trials": 3}, 5, "`search` must be a name, a mapping with a name"),
        ({"name": "tpe", "startup": 3}, 5, "option of tpe 'startup'. Known: candidates, startup_"),
        ({"name": "tpe", "startup": 3}, 5, "Did you mean 'startup_trials'?"),
        ({"name": "random", "startup": 3}, 5, "unknown option of random 'startup'. Known: none."),
        ({"name": "tpe", "candidates": 0}, 5, "must be an integer, at least 1, but got 0."),
        ({"name": "nsga2", "population": 2.5}, 5, "must be an integer, at least 2, but got 2.5."),
        ({"name": "nsga2", "population": True}, 5, "must be an integer"),
        ("random", None, "search='random' needs num_trials"),
        ("random", 0, "`num_trials >= 1` must hold, but got num_trials=0."),
        ("grid", 5, "num_trials belongs to random search"),
    ],
)
def test_a_wrong_search_says_what_to_do(
    search: object, num_trials: int | None, message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        make_sampler(search, LISTED, num_trials=num_trials)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "sampler",
    [GridSampler(LISTED), RandomSampler(MIXED, seed=0, num_trials=3)],
    ids=["grid", "random"],
)
def test_a_negative_number_is_refused(sampler: Sampler) -> None:
    with pytest.raises(UsageError, match="`number >= 0` must hold, but got number=-1"):
        sampler.ask(-1)


def test_the_table_of_samplers_is_sorted() -> None:
    assert list(SAMPLERS) == sorted(SAMPLERS)


@pytest.mark.parametrize("name", ["nsga2", "random", "sobol", "tpe"])
def test_a_search_may_be_a_mapping_with_its_name(name: str) -> None:
    one = make_sampler({"name": name}, MIXED, seed=3, num_trials=2)
    assert all_of(one, 2) == all_of(make_sampler(name, MIXED, seed=3, num_trials=2), 2)


def test_a_search_without_its_package_says_what_to_install(monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    for name in [name for name in sys.modules if name.startswith("cerebro.search.optuna")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cerebro\[optuna\]'"):
        make_sampler("tpe", MIXED, num_trials=2)


@pytest.mark.parametrize(
    ("search", "described"),
    [
        ("random", {"name": "random"}),
        ({"name": "tpe", "candidates": 9}, {"name": "tpe", "candidates": 9}),
    ],
    ids=["name", "mapping"],
)
def test_a_search_is_described_in_json(search: object, described: object) -> None:
    assert json.loads(json.dumps(describe_search(search))) == described


def test_an_object_is_described_by_its_class_and_arguments() -> None:
    described = describe_search(optuna.samplers.TPESampler(n_startup_trials=3, seed=1))
    assert json.loads(json.dumps(described)) == described
    assert described["name"] == "optuna"
    assert str(described["class"]).endswith("TPESampler")
    assert isinstance(described["arguments"], dict)
    assert described["arguments"]["n_startup_trials"] == 3
    assert "0x" not in json.dumps(described)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_an_argument_that_json_cannot_hold_is_described_by_its_class() -> None:
    inner = optuna.samplers.RandomSampler(seed=1)
    described = describe_search(optuna.samplers.PartialFixedSampler({"lr": 0.1}, inner))
    assert described["arguments"] == {
        "fixed_params": {"lr": 0.1},
        "base_sampler": "RandomSampler",
    }
