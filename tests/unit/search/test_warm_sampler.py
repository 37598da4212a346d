from __future__ import annotations

from typing import Any

import pytest

from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import LogUniform
from cerebro.search.sampler import Sampler, make_sampler
from cerebro.search.space import parse_space
from cerebro.search.warm import WarmSampler
from cerebro.testing.sampler_contract import SamplerContract
from cerebro.types import Params, TrialStatus

SPACE = parse_space({"lr": LogUniform(1e-4, 1e-1), "layers": [[64], [64, 64]]})
FIRST: list[Params] = [{"layers": [64], "lr": 0.05}, {"lr": 0.5, "layers": [8]}]
KNOWN: list[tuple[Params, Outcome]] = [
    ({"lr": 0.01, "layers": [64]}, Outcome((0.9,), TrialStatus.FINISHED)),
    ({"lr": 5.0, "layers": [64]}, Outcome((0.1,), TrialStatus.FINISHED)),
    ({"lr": 0.01}, Outcome((0.1,), TrialStatus.FINISHED)),
]


def make(name: str = "random", **given: Any) -> Sampler:
    return make_sampler(name, SPACE, seed=0, num_trials=8, **given)


class TestWarmRandomSampler(SamplerContract):
    names = ("lr", "layers")

    def make(self) -> Sampler:
        return make(warm_start=FIRST, known=KNOWN)


class TestWarmTpeSampler(SamplerContract):
    names = ("lr", "layers")

    def make(self) -> Sampler:
        return make("tpe", warm_start=FIRST, known=KNOWN)


def test_given_params_come_first_in_the_order_of_the_space() -> None:
    sampler = make(warm_start=FIRST)
    assert sampler.ask(0) == {"lr": 0.05, "layers": [64]}
    assert list(sampler.ask(0) or {}) == ["lr", "layers"]
    assert sampler.ask(1) == {"lr": 0.5, "layers": [8]}


def test_given_params_count_among_the_trials() -> None:
    sampler = make(warm_start=FIRST)
    assert sampler.num_trials == 8
    assert sampler.ask(7) == make().ask(7)
    assert sampler.ask(8) is None


def test_a_sampler_that_learns_does_so_from_an_earlier_run() -> None:
    known = [
        ({"lr": 0.001 * k, "layers": [64]}, Outcome((-abs(k - 30.0),), TrialStatus.FINISHED))
        for k in range(1, 100)
    ]
    rates = [params["lr"] for n in range(8) if (params := make("tpe", known=known).ask(n))]
    assert all(isinstance(rate, float) and 0.02 < rate < 0.045 for rate in rates)


def test_known_trials_outside_the_space_are_counted() -> None:
    sampler = make("tpe", known=KNOWN)
    assert isinstance(sampler, WarmSampler)
    assert (sampler.num_known, sampler.num_skipped) == (1, 2)


def test_changing_a_proposal_leaves_the_given_params_alone() -> None:
    sampler = make(warm_start=FIRST)
    params: Any = sampler.ask(0)
    params["layers"].append(1)
    assert sampler.ask(0) == {"lr": 0.05, "layers": [64]}


def test_given_params_leave_the_proposals_after_them_as_they_were() -> None:
    assert make(warm_start=FIRST).ask(5) == make().ask(5)


@pytest.mark.parametrize(
    ("first", "message"),
    [
        (
            [{"lr": 0.1}],
            "warm_start[0] must have a value for every parameter of the space",
        ),
        ([*FIRST, {"lrr": 0.1}], "warm_start[2]: unknown parameter 'lrr'. Known: lr, layers. Did"),
        ([5], "warm_start[0] must be a dict of params, but got 5."),
        ([{"lr": print, "layers": []}], "a parameter's value must be None"),
        (FIRST * 5, "but got num_trials=8 and warm_start with 10."),
    ],
)
def test_wrong_params_to_try_first_are_named(first: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(warm_start=first)
    assert message in str(caught.value)


def test_a_grid_takes_no_params_to_try_first() -> None:
    with pytest.raises(UsageError, match="a grid tries every combination"):
        make_sampler("grid", parse_space({"a": [1]}), warm_start=[{"a": 1}])
