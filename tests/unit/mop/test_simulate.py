from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.mop.simulate import Costs, Outage, simulate


def test_two_equal_units_on_two_workers_run_side_by_side() -> None:
    result = simulate(Costs((2.0, 2.0), (1.0, 1.0), train_shards=3))
    assert (result.makespan, result.busy, result.decisions) == (6.0, 12.0, 6)
    assert result.ratio == 1.0


def test_one_unit_uses_one_worker() -> None:
    result = simulate(Costs((1.0,), (1.0, 1.0), train_shards=4))
    assert (result.makespan, result.lower_bound) == (4.0, 4.0)


def test_three_equal_units_on_two_workers_share_them() -> None:
    # 6 visits of 1 s on 2 workers: three rounds.
    assert simulate(Costs((1.0,) * 3, (1.0, 1.0), train_shards=2)).makespan == 3.0


def test_a_fast_worker_does_more() -> None:
    # 12 s of work: the worker of speed 3 does 9 s of it.
    assert simulate(Costs((1.0,) * 4, (1.0, 3.0), train_shards=3)).makespan == 3.0


def test_eval_visits_of_one_unit_run_in_parallel() -> None:
    # One train visit of 4 s, then two eval visits of 1 s at once, per epoch.
    costs = Costs((4.0,), (1.0, 1.0), train_shards=1, val_shards=2, epochs=2)
    assert simulate(costs).makespan == 10.0
    assert costs.lower_bound() == 10.0


def test_a_visit_lost_with_its_worker_is_done_again() -> None:
    # 1.5 s on the worker that leaves, of which 0.5 s are lost; then the other does all.
    costs = Costs((1.0, 1.0), (1.0, 1.0), train_shards=2)
    result = simulate(costs, outages=[Outage(0, at=1.5)])
    assert (result.makespan, result.decisions, result.busy) == (3.0, 5, 4.5)
    assert result.lower_bound == 2.5


def test_a_worker_that_comes_back_helps_again() -> None:
    costs = Costs((1.0,) * 4, (1.0, 1.0), train_shards=2)
    result = simulate(costs, outages=[Outage(0, at=1.5, back=3.5)])
    # Answers at 1, 4.5 and 5.5 on one worker, at 1 to 5 on the other; half a second was lost.
    assert (result.makespan, result.lower_bound) == (5.5, 5.0)


def test_a_plan_that_loses_all_workers_does_not_finish() -> None:
    result = simulate(Costs((1.0,), (1.0,), train_shards=3), outages=[Outage(0, at=1.5)])
    assert not result.finished
    assert result.lower_bound == float("inf")


def test_a_plan_waits_out_an_outage_of_its_only_worker() -> None:
    result = simulate(Costs((1.0,), (1.0,), train_shards=3), outages=[Outage(0, 1.5, 5.0)])
    assert (result.makespan, result.lower_bound) == (7.0, 6.5)


def test_slow_durability_delays_a_unit_alone() -> None:
    # Visits end at 1 and 2; the third waits until the first is durable at 6.
    costs = Costs((1.0,), (1.0,), train_shards=3)
    assert simulate(costs, durable=5.0).makespan == 7.0


def test_instant_durability_delays_nothing() -> None:
    costs = Costs((1.0, 2.0, 3.0), (1.0, 1.0), train_shards=5)
    assert simulate(costs, durable=0.0).makespan == simulate(costs).makespan


def test_workers_that_hold_shards_are_as_busy_as_others() -> None:
    costs = Costs((1.0,) * 4, (1.0,) * 4, train_shards=4)
    homes = [frozenset({worker}) for worker in range(4)]
    assert simulate(costs, holds=homes).makespan == 4.0


@settings(deadline=None, max_examples=50)
@given(
    train=st.lists(st.floats(0.36, 21.0), min_size=1, max_size=8),
    speeds=st.lists(st.floats(5.6, 18.7), min_size=1, max_size=5),
    shards=st.integers(1, 6),
    evals=st.integers(0, 3),
    epochs=st.integers(1, 2),
)
def test_every_visit_happens_and_no_plan_beats_the_lower_bound(
    train: list[float], speeds: list[float], shards: int, evals: int, epochs: int
) -> None:
    result = simulate(Costs(train, speeds, shards, evals, epochs), durable=0.0)
    assert result.finished
    assert result.decisions == len(train) * epochs * (shards + evals)
    assert result.makespan >= result.lower_bound * (1 - 1e-9)
    assert result.busy <= result.makespan * len(speeds) * (1 + 1e-9)


@pytest.mark.parametrize("has_homes", [False, True])
def test_unequal_units_on_unequal_workers_come_within_two_percent(has_homes: bool) -> None:
    rng = random.Random(1)
    train = [rng.uniform(0.36, 21.0) for _ in range(200)]
    speeds = [rng.uniform(5.6, 18.7) for _ in range(20)]
    homes = [frozenset({worker}) for worker in range(20)] if has_homes else None
    assert simulate(Costs(train, speeds, train_shards=20), holds=homes).ratio <= 1.02
