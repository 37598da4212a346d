from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro import tune
from cerebro.errors import UsageError
from cerebro.search.domain import Choice, Constant, Domain, RandInt, Subspace, Uniform
from cerebro.search.sampler import GridSampler, RandomSampler, Sampler
from cerebro.search.sobol import SobolSampler
from cerebro.search.space import Space, parse_space
from cerebro.testing.sampler_contract import SamplerContract
from cerebro.types import Params

CNN = {"kind": "cnn", "depth": tune.randint(1, 3)}
MLP = {"kind": "mlp", "width": [32, 64]}
NESTED = parse_space(
    {"lr": tune.loguniform(1e-4, 1e-1), "model": tune.choice([CNN, MLP, "linear"])}
)
LISTED = parse_space(
    {
        "model": tune.choice([{"kind": "cnn", "depth": tune.choice([1, 2, 3])}, MLP, "linear"]),
        "lr": [0.1, 0.01],
    }
)

names = st.sampled_from(["a", "b", "c"])
leaves: st.SearchStrategy[Domain] = st.sampled_from(
    [Constant([1]), Choice([1, 2, [3]]), RandInt(1, 4), Uniform(0, 1), Choice([{"x": 1}, {}])]
)


def options(inner: st.SearchStrategy[Domain]) -> st.SearchStrategy[Domain]:
    subspaces = st.dictionaries(names, inner, min_size=1, max_size=3)
    return st.lists(subspaces | st.integers(), min_size=1, max_size=3).map(Choice)


domains = st.recursive(leaves, options, max_leaves=6)
spaces = st.dictionaries(names, domains, max_size=3).map(parse_space)


class TestGridOfANestedSpace(SamplerContract):
    names = ("model", "lr")

    def make(self) -> Sampler:
        return GridSampler(LISTED)


class TestRandomDrawsFromANestedSpace(SamplerContract):
    names = ("lr", "model")

    def make(self) -> Sampler:
        return RandomSampler(NESTED, seed=0, num_trials=12)


def proposals(sampler: Sampler, count: int) -> list[Any]:
    return [sampler.ask(number) for number in range(count)]


POSSIBLE: list[Any] = [
    *({"kind": "cnn", "depth": depth} for depth in (1, 2, 3)),
    *({"kind": "mlp", "width": width} for width in (32, 64)),
    "linear",
]


@pytest.mark.parametrize("make", [RandomSampler, SobolSampler])
def test_a_trial_has_the_parameters_of_its_option_alone(make: Any) -> None:
    models = [params["model"] for params in proposals(make(NESTED, seed=0, num_trials=64), 64)]
    assert all(model in POSSIBLE for model in models)
    assert all(model in models for model in POSSIBLE)


def test_a_grid_tries_every_value_of_every_option() -> None:
    sampler = GridSampler(LISTED)
    assert sampler.num_trials == (3 + 2 + 1) * 2
    trials = proposals(sampler, 12)
    assert trials[0] == {"model": {"kind": "cnn", "depth": 1}, "lr": 0.1}
    assert trials[1] == {"model": {"kind": "cnn", "depth": 1}, "lr": 0.01}
    assert trials[-1] == {"model": "linear", "lr": 0.01}
    assert len({json.dumps(params) for params in trials}) == 12


def test_a_huge_nested_grid_costs_nothing_until_it_is_asked() -> None:
    inner = {f"p{i}": list(range(100)) for i in range(10)}
    sampler = GridSampler(parse_space({"m": Choice([{**inner, "q": Constant(0)}, {"r": [1, 2]}])}))
    assert sampler.num_trials == 100**10 + 2
    assert sampler.ask(100**10 - 1) == {"m": {**dict.fromkeys(inner, 99), "q": 0}}
    assert sampler.ask(100**10 + 1) == {"m": {"r": 2}}


def test_plain_dicts_stay_values() -> None:
    values = [{"kind": "cnn", "sizes": [1, 2]}, {"uniform": [0, 1]}]
    assert parse_space({"model": values}).listed() == {"model": tuple(values)}


def test_a_subspace_may_be_written_as_in_yaml() -> None:
    written = {
        "choice": [
            {"kind": "cnn", "depth": {"randint": [1, 3]}},
            {"kind": "mlp", "width": [32, 64]},
        ]
    }
    assert parse_space({"model": written})["model"] == Choice([CNN, MLP])


def test_subspaces_may_hold_subspaces() -> None:
    adam = {"name": "adam", "beta": Uniform(0.8, 0.99)}
    space = parse_space({"model": [{"kind": "cnn", "optimizer": [adam, {"name": "sgd"}]}]})
    paths = [path for path, _ in space.walk()]
    assert "model[0].optimizer[0].beta" in paths
    trials = proposals(RandomSampler(space, seed=0, num_trials=20), 20)
    assert {params["model"]["optimizer"]["name"] for params in trials} == {"adam", "sgd"}


def test_a_dict_of_domains_is_a_group_of_parameters() -> None:
    space = parse_space({"optimizer": {"name": "sgd", "lr": {"choice": [0.1, 0.01]}}})
    assert proposals(GridSampler(space), 3) == [
        {"optimizer": {"name": "sgd", "lr": 0.1}},
        {"optimizer": {"name": "sgd", "lr": 0.01}},
        None,
    ]


def test_adding_an_option_leaves_the_other_parameters_as_they_were() -> None:
    more = parse_space({"lr": NESTED["lr"], "model": Choice([CNN, MLP, "linear", {"kind": "rnn"}])})
    before = proposals(RandomSampler(NESTED, seed=3, num_trials=30), 30)
    after = proposals(RandomSampler(more, seed=3, num_trials=30), 30)
    assert [params["lr"] for params in before] == [params["lr"] for params in after]
    both = [
        (one["model"], other["model"])
        for one, other in zip(before, after, strict=True)
        if "depth" in one["model"] and "depth" in other["model"]
    ]
    assert both
    assert all(one == other for one, other in both)


@pytest.mark.parametrize("make", [RandomSampler, SobolSampler])
def test_parameters_of_one_subspace_are_not_correlated(make: Any) -> None:
    inner = {name: Uniform(0, 1) for name in "abc"}
    space = parse_space({"m": Choice([inner, dict(inner)]), "o": Uniform(0, 1)})
    trials = proposals(make(space, seed=1, num_trials=1024), 1024)
    rows = np.array([[params["o"], *params["m"].values()] for params in trials])
    assert np.abs(np.corrcoef(rows.T) - np.eye(4)).max() < 0.12


@settings(max_examples=60, deadline=None)
@given(spaces)
def test_a_nested_space_comes_back_from_its_json(space: Space) -> None:
    again = parse_space(json.loads(json.dumps(space.to_json())))
    assert list(again.items()) == list(space.items())


@settings(max_examples=60, deadline=None)
@given(spaces, st.integers(0, 2**32))
def test_what_is_proposed_lies_in_the_space(space: Space, seed: int) -> None:
    for sampler in (
        RandomSampler(space, seed=seed, num_trials=3),
        SobolSampler(space, seed=seed, num_trials=3),
    ):
        for params in proposals(sampler, 3):
            assert list(params) == list(space)
            assert space.has(params)


@settings(max_examples=60, deadline=None)
@given(spaces)
def test_a_grid_has_each_of_its_trials_once(space: Space) -> None:
    try:
        sampler = GridSampler(space)
    except UsageError:
        return
    count = sampler.num_trials or 0
    trials = proposals(sampler, min(count, 300))
    assert all(space.has(params) for params in trials)
    assert len({json.dumps(params, sort_keys=True) for params in trials}) == len(trials)
    assert sampler.ask(count) is None


def test_changing_a_proposal_leaves_the_space_alone() -> None:
    space = parse_space({"m": Choice([{"layers": Choice([[64]])}])})
    for sampler in (GridSampler(space), RandomSampler(space, seed=0, num_trials=2)):
        params: Params = sampler.ask(0) or {}
        params["m"]["layers"].append(1)  # type: ignore[index,call-overload,union-attr]
        assert sampler.ask(0) == {"m": {"layers": [64]}}


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"model": Choice([CNN, MLP])},
            "grid search needs listed values, but 'model[0].depth' is randint.",
        ),
        (
            {"m": Choice([{"a": Choice([1, 2])}, {"a": Choice([2, 3])}])},
            "grid search would train the same trial twice: 'm' lists {'a': {'choice': [1, 2]}}",
        ),
        ({"m": Choice([{"a": Choice([5, 5])}])}, "'m[0].a' lists 5 more than once"),
    ],
)
def test_a_nested_grid_that_cannot_be_names_the_path(space: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        GridSampler(parse_space(space))
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ([CNN, {"a b": 1}], "option 1: a parameter's name must start with a letter"),
        ([CNN, {"x": {"y": 1, "z": 2}}], "option 1: parameter 'x': a domain is one of"),
        ([{"kind": 1, "depth": {"randint": [3, 1]}}], "option 0: parameter 'depth': `low < high`"),
        ([CNN, print], "option 1: a parameter's value must be None"),
    ],
)
def test_a_wrong_subspace_names_the_option(options: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        tune.choice(options)
    assert message in str(caught.value)


def test_sample_value_fills_a_subspace() -> None:
    domain = tune.choice([CNN, MLP])
    assert all(domain.has(domain.sample_value()) for _ in range(20))
    assert isinstance(domain.values[0], Subspace)
