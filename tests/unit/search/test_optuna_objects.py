"""Samplers that are objects: of Optuna's classes, and of one's own."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import optuna
import pytest

from cerebro import tune
from cerebro.errors import UsageError
from cerebro.search.domain import LogUniform, Uniform
from cerebro.search.sampler import Sampler, make_sampler
from cerebro.search.space import parse_space
from cerebro.testing.sampler_contract import SamplerContract
from cerebro.types import Params
from tests.unit.search.test_optuna_sampler import MIXED, NAMES, finished, search_with


class TestAnObjectOfOptunas(SamplerContract):
    names = NAMES
    # One for all: what one sampler does with it must not show in the next.
    search = optuna.samplers.TPESampler(n_startup_trials=4)

    def make(self) -> Sampler:
        return make_sampler(self.search, MIXED, seed=3, num_trials=14)


class Drifting(optuna.samplers.BaseSampler):
    """A sampler of a person's own, that draws around what was best so far."""

    def __init__(self) -> None:
        self.rng = np.random.default_rng()
        self.last = 0.5

    def infer_relative_search_space(self, study: Any, trial: Any) -> dict[str, Any]:
        return {}

    def sample_relative(self, study: Any, trial: Any, search_space: Any) -> dict[str, Any]:
        return {}

    def sample_independent(
        self, study: Any, trial: Any, param_name: str, param_distribution: Any
    ) -> Any:
        return min(max(self.last + self.rng.normal() / 10, 0), 1)

    def after_trial(self, study: Any, trial: Any, state: Any, values: Any) -> None:
        self.last = trial.params["x"]


class TestASamplerOfOnesOwn(SamplerContract):
    names = ("x",)
    search = Drifting()

    def make(self) -> Sampler:
        return make_sampler(self.search, parse_space({"x": Uniform(0, 1)}), num_trials=10)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
@pytest.mark.parametrize(
    "make",
    [
        lambda: optuna.samplers.RandomSampler(),
        lambda: optuna.samplers.NSGAIISampler(population_size=4),
        lambda: optuna.samplers.BruteForceSampler(),
    ],
    ids=["random", "nsga2", "brute force"],
)
def test_samplers_of_optuna_are_seeded_by_the_search(make: Callable[[], Any]) -> None:
    space = parse_space({"x": list(range(50)), "y": list(range(50))})

    def proposals(seed: int) -> list[Params]:
        sampler = make_sampler(make(), space, seed=seed, num_trials=12)
        return search_with(sampler, lambda p: finished(float(p["x"])), 12)  # type: ignore[arg-type]

    assert proposals(1) == proposals(1)
    assert proposals(1) != proposals(2)


@pytest.mark.filterwarnings("ignore::optuna.exceptions.ExperimentalWarning")
def test_a_sampler_that_has_tried_everything_ends_the_search() -> None:
    search = optuna.samplers.BruteForceSampler()
    space = parse_space({"model": [{"kind": "a", "depth": tune.randint(1, 2)}, {"kind": "b"}]})
    sampler = make_sampler(search, space, num_trials=10)
    trials = search_with(sampler, lambda p: finished(0.5), 3)
    assert len({json.dumps(params) for params in trials}) == 3
    assert sampler.ask(3) is None


def test_parameters_have_the_names_and_values_of_the_space() -> None:
    grid = optuna.samplers.GridSampler({"lr": [0.1, 0.01], "act": ["relu", None]})
    space = parse_space({"lr": LogUniform(1e-4, 1), "act": ["relu", "tanh", None]})
    sampler = make_sampler(grid, space, num_trials=9)
    trials = search_with(sampler, lambda p: finished(0.5), 4)
    assert sorted(json.dumps(params) for params in trials) == sorted(
        json.dumps({"lr": lr, "act": act}) for lr in (0.1, 0.01) for act in ("relu", None)
    )


def test_a_sampler_that_fails_is_named() -> None:
    grid = optuna.samplers.GridSampler({"other": [1]})
    sampler = make_sampler(grid, parse_space({"lr": Uniform(0, 1)}), num_trials=2)
    with pytest.raises(UsageError, match="the Optuna sampler GridSampler must propose params"):
        sampler.ask(0)


def test_the_given_object_is_left_alone() -> None:
    search = Drifting()
    space = parse_space({"x": Uniform(0, 1)})
    search_with(make_sampler(search, space, num_trials=5), lambda p: finished(0.5), 5)
    assert search.last == 0.5
