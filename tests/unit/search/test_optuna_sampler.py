from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro import tune
from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import (
    Choice,
    Domain,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
)
from cerebro.search.entrant import Judgement
from cerebro.search.optuna_sampler import OptunaSampler
from cerebro.search.sampler import Sampler, make_sampler
from cerebro.search.space import Space, parse_space
from cerebro.testing.sampler_contract import SamplerContract
from cerebro.types import Mode, Params, TrialStatus

CNN = {"kind": "cnn", "depth": tune.randint(1, 3)}
MLP = {"kind": "mlp", "width": [32, 64]}
MIXED = parse_space(
    {
        "lr": LogUniform(1e-4, 1e-1),
        "batch_size": QLogUniform(16, 256, 16),
        "dropout": QUniform(0.1, 0.7, 0.1),
        "layers": [[64], [32, 32], None],
        "same": [1, True, 1.0],
        "act": "relu",
        "model": [CNN, MLP, "linear"],
    }
)
NAMES = ("lr", "batch_size", "dropout", "layers", "same", "act", "model")


class TestTpe(SamplerContract):
    names = NAMES

    def make(self) -> Sampler:
        return make_sampler({"name": "tpe", "startup_trials": 4}, MIXED, seed=3, num_trials=14)


class TestTpeOfTwoObjectives(SamplerContract):
    names = NAMES
    num_objectives = 2

    def make(self) -> Sampler:
        search = {"name": "tpe", "startup_trials": 4}
        return make_sampler(search, MIXED, seed=3, num_trials=12, modes=("max", "min"))


class TestNsga2(SamplerContract):
    names = NAMES
    num_objectives = 2

    def make(self) -> Sampler:
        search = {"name": "nsga2", "population": 3}
        return make_sampler(search, MIXED, seed=3, num_trials=14, modes=("max", "min"))


class TestNsga2OfOneObjective(SamplerContract):
    names = NAMES

    def make(self) -> Sampler:
        return make_sampler({"name": "nsga2", "population": 3}, MIXED, seed=3, num_trials=14)


def finished(*values: float, violations: tuple[float, ...] = ()) -> Outcome:
    return Outcome(values, TrialStatus.FINISHED, violations)


def search_with(
    sampler: Sampler, score: Callable[[Params], Outcome], num_trials: int
) -> list[Params]:
    trials: list[Params] = []
    for number in range(num_trials):
        params = sampler.ask(number)
        assert params is not None
        sampler.tell(number, params, score(params))
        trials.append(params)
    return trials


def numbers(trials: list[Params], name: str) -> list[float]:
    return [float(params[name]) for params in trials]  # type: ignore[arg-type]


def tpe(space: Any, num_trials: int = 40, **given: Any) -> Sampler:
    return make_sampler("tpe", parse_space(space), num_trials=num_trials, **given)


def test_the_larger_metric_is_sought_where_the_mode_is_max() -> None:
    trials = search_with(tpe({"x": Uniform(0, 1)}), lambda p: finished(p["x"]), 40)  # type: ignore[arg-type]
    assert np.mean(numbers(trials, "x")[20:]) > 0.8


def test_the_smaller_metric_is_sought_where_the_mode_is_min() -> None:
    sampler = tpe({"x": Uniform(0, 1)}, modes=("min",))
    trials = search_with(sampler, lambda p: finished(p["x"]), 40)  # type: ignore[arg-type]
    assert np.mean(numbers(trials, "x")[20:]) < 0.2


def test_a_base_ten_log_range_is_searched_in_its_own_bounds() -> None:
    def score(params: Params) -> Outcome:
        return finished(-abs(math.log10(params["lr"]) + 3))  # type: ignore[arg-type]

    rates = numbers(search_with(tpe({"lr": tune.hp_loguniform(-5, -1)}), score, 40), "lr")
    assert all(1e-5 <= rate <= 1e-1 for rate in rates)
    # The first ten are drawn at random: over all decades, not over powers of e.
    assert min(rates[:10]) < 1e-4
    assert max(rates[:10]) > 1e-2
    assert sum(3e-4 < rate < 3e-3 for rate in rates[20:]) > 8


def test_it_learns_which_option_is_best() -> None:
    def score(params: Params) -> Outcome:
        model = params["model"]
        assert isinstance(model, dict | str)
        depth = model.get("depth", 0) if isinstance(model, dict) else 0
        return finished(depth)  # type: ignore[arg-type]

    trials = search_with(tpe({"model": [CNN, MLP, "linear"]}, 60), score, 60)
    best = {"kind": "cnn", "depth": 3}
    assert sum(params["model"] == best for params in trials[30:]) > 15


def test_two_objectives_are_both_sought() -> None:
    space = {"x": Uniform(0, 1), "y": Uniform(0, 1)}
    sampler = tpe(space, 80, modes=("max", "min"))
    trials = search_with(sampler, lambda p: finished(p["x"], p["y"]), 80)  # type: ignore[arg-type]
    assert np.mean(numbers(trials, "x")[40:]) > 0.7
    assert np.mean(numbers(trials, "y")[40:]) < 0.3


@pytest.mark.parametrize("version", ["4.2.0", optuna.__version__])
def test_a_constraint_that_is_violated_keeps_the_search_away(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(optuna, "__version__", version)

    def score(params: Params) -> Outcome:
        x = float(params["x"])  # type: ignore[arg-type]
        return finished(x, violations=(x - 0.5,))

    xs = numbers(search_with(tpe({"x": Uniform(0, 1)}, 60), score, 60), "x")[30:]
    assert sum(x <= 0.5 for x in xs) > 15
    assert np.mean(xs) > 0.3


FAILURES = (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.DIVERGED)


@pytest.mark.parametrize("modes", [("max",), ("max", "min")])
def test_failures_keep_the_search_away(modes: tuple[str, ...]) -> None:
    """The larger the better, but what is above a half fails: unheard of, all would be above."""

    def score(params: Params) -> Outcome:
        x = float(params["x"])  # type: ignore[arg-type]
        values = (x, x * x)[: len(modes)]
        return Outcome(None, FAILURES[int(100 * x) % 3]) if x > 0.5 else finished(*values)

    xs = numbers(search_with(tpe({"x": Uniform(0, 1)}, 60, modes=modes), score, 60), "x")
    assert sum(x > 0.5 for x in xs[30:]) < 20


def test_failures_before_the_first_value_count_from_then_on() -> None:
    def play(first: int) -> Params | None:
        """Trial `first` finishes before the others fail, or after."""
        sampler = tpe({"x": Uniform(0, 1)}, 20)
        params = [sampler.ask(number) or {} for number in range(12)]
        for number in sorted(range(12), key=lambda number: (number != first, number)):
            ends = Outcome(None, FAILURES[number % 3]) if number != 11 else finished(0.3)
            sampler.tell(number, params[number], ends)
        return sampler.ask(12)

    assert play(11) == play(0)


def test_a_search_of_which_all_fails_goes_on() -> None:
    sampler = tpe({"x": Uniform(0, 1)}, 30)
    for number in range(30):
        params = sampler.ask(number)
        assert params is not None
        sampler.tell(number, params, Outcome(None, TrialStatus.DIVERGED))


def test_what_fails_breaks_the_constraints() -> None:
    """Else it would be better than all that break them."""
    score = Judgement([("loss", Mode.MIN)], [("size", 1.0)]).outcome
    sampler = tpe({"x": Uniform(0, 1)}, 60)
    asked: list[float] = []
    for number in range(60):
        params = sampler.ask(number) or {}
        x = float(params["x"])  # type: ignore[arg-type]
        ends = score({"loss": 0.0, "size": 2 + x}, TrialStatus.FINISHED)
        sampler.tell(number, params, score(None, TrialStatus.FAILED) if x > 0.5 else ends)
        asked.append(x)
    assert np.mean(asked[30:]) < 0.35


def test_a_trial_that_waits_counts_until_it_is_told_again() -> None:
    def play(status: TrialStatus, again: float) -> list[float]:
        sampler = tpe({"x": Uniform(0, 1)}, 60)
        for number in range(30):
            params = sampler.ask(number) or {}
            sampler.tell(number, params, Outcome((float(params["x"]),), status))  # type: ignore[arg-type]
        asked = [sampler.ask(number) or {} for number in range(30, 40)]
        for number in range(30):
            params = sampler.ask(number) or {}
            sampler.tell(number, params, finished(again * float(params["x"])))  # type: ignore[arg-type]
        asked += [sampler.ask(number) or {} for number in range(40, 50)]
        return numbers(asked, "x")

    paused = play(TrialStatus.PAUSED, -1.0)
    assert np.mean(paused[:10]) > 0.6
    assert np.mean(paused[10:]) < 0.4


def test_a_stopped_trial_counts_as_one_that_finished() -> None:
    def proposals(status: TrialStatus) -> list[Params]:
        sampler = tpe({"x": Uniform(0, 1)})
        return search_with(sampler, lambda p: Outcome((float(p["x"]),), status), 20)  # type: ignore[arg-type]

    assert proposals(TrialStatus.STOPPED) == proposals(TrialStatus.FINISHED)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_value_that_is_no_number_counts_for_nothing(value: float) -> None:
    sampler = tpe({"x": Uniform(0, 1)})
    search_with(sampler, lambda p: finished(value), 15)


def test_the_number_of_values_is_that_of_the_objectives() -> None:
    sampler = tpe({"x": Uniform(0, 1)})
    with pytest.raises(UsageError, match="must be told with 1 values, one for each objective"):
        sampler.tell(0, sampler.ask(0) or {}, finished(0.1, 0.2))


DOMAINS: list[Domain] = [
    Uniform(-1, 1),
    LogUniform(1e-6, 1e-1),
    QUniform(0.1, 0.7, 0.1),
    QUniform(-100, 100, 7),
    QLogUniform(0.1, 2.5, 0.1),
    QLogUniform(1, 10**6, 3),
    RandInt(-3, 3),
    RandInt(0, 2**60),
    Choice([[64], {"a": 1}, None, "x", 0.5]),
    Choice([{"a": Uniform(0, 1), "b": [1, 2]}, {"b": [{"c": RandInt(1, 2)}, 5]}]),
]


@settings(max_examples=25, deadline=None)
@given(
    space=st.dictionaries(st.sampled_from("abc"), st.sampled_from(DOMAINS), min_size=1).map(
        parse_space
    ),
    seed=st.integers(0, 2**63),
    scores=st.lists(st.floats(-1, 1), min_size=8, max_size=8),
)
def test_what_is_proposed_lies_in_the_space_and_is_plain(
    space: Space, seed: int, scores: list[float]
) -> None:
    sampler = make_sampler({"name": "tpe", "startup_trials": 3}, space, seed=seed, num_trials=8)
    for number, score in enumerate(scores):
        params = sampler.ask(number)
        assert params is not None
        assert space.has(params)
        assert repr(json.loads(json.dumps(params))) == repr(params)
        sampler.tell(number, params, finished(score))


def test_parameters_drawn_before_it_learns_are_not_correlated() -> None:
    sampler = tpe({name: Uniform(0, 1) for name in "abc"}, 300)
    rows = [list((sampler.ask(number) or {}).values()) for number in range(300)]
    assert np.abs(np.corrcoef(np.array(rows, dtype=float).T) - np.eye(3)).max() < 0.2


def test_trials_under_way_are_kept_apart() -> None:
    sampler = tpe({"x": Uniform(0, 1)}, 60)
    search_with(sampler, lambda p: finished(-abs(float(p["x"]) - 0.5)), 20)  # type: ignore[arg-type]
    asked = [sampler.ask(number) or {} for number in range(20, 40)]
    assert len({json.dumps(params) for params in asked}) == 20
    assert np.std(numbers(asked, "x")) > 0.01


SCRIPT = """
import json
from cerebro.search import make_sampler, parse_space
from cerebro.search.decision import Outcome
from cerebro.types import TrialStatus

cnn = {"kind": "cnn", "depth": {"randint": [1, 3]}, "rate": {"uniform": [0, 1]}}
space = parse_space({"lr": {"loguniform": [1e-4, 0.1]}, "model": [cnn, {"kind": "mlp"}]})
sampler = make_sampler({"name": "tpe", "startup_trials": 3}, space, seed=5, num_trials=12)
for number in range(12):
    params = sampler.ask(number)
    sampler.tell(number, params, Outcome((number % 5 / 5,), TrialStatus.FINISHED))
    print(json.dumps(params))
"""


def test_another_process_gets_the_same_proposals() -> None:
    def run(hash_seed: str) -> str:
        environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
        command = [sys.executable, "-c", SCRIPT]
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        assert done.stderr == ""
        return done.stdout

    assert run("1") == run("2")


def test_nothing_is_printed_or_logged(capfd: Any, caplog: Any) -> None:
    before = optuna.logging.get_verbosity()
    with warnings.catch_warnings(), caplog.at_level(logging.DEBUG):
        warnings.simplefilter("error")
        search_with(tpe({"model": [CNN, MLP]}), lambda p: finished(0.5, violations=(1.0,)), 12)
    assert capfd.readouterr() == ("", "")
    assert optuna.logging.get_verbosity() == before


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(UsageError, match=r"unknown sampler 'tep'. Known: nsga2, tpe."):
        OptunaSampler(MIXED, "tep", seed=0)


def test_it_goes_on_where_no_number_of_trials_is_given() -> None:
    sampler = OptunaSampler(MIXED, seed=0)
    assert sampler.num_trials is None
    assert sampler.ask(10**6) is not None
