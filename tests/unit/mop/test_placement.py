from __future__ import annotations

import pytest

from cerebro.mop.ladder import Ladder
from cerebro.mop.placement import Placement
from cerebro.mop.state import UnitState
from cerebro.mop.visit import Unit, check_unit


def unit(number: int, weight: float = 1.0) -> UnitState:
    return UnitState(Unit(number, (number,), 0, 1, weight=weight), train_shards=4)


def filled(*placed: tuple[UnitState, int], holds: dict[int, frozenset[int]]) -> Placement:
    placement = Placement(shards=4)
    for worker, shards in holds.items():
        placement.join(worker, shards)
        placement.idle[worker] = None
    for state, shard in placed:
        placement.push(state, shard)
    return placement


def test_a_worker_takes_the_longest_unit_first() -> None:
    short, long = unit(0, 1.0), unit(1, 2.0)
    placement = filled((long, 0), (short, 1), holds={0: frozenset()})
    assert [placement.take(0), placement.take(0), placement.take(0)] == [long, short, None]


def test_a_worker_prefers_a_shard_it_holds_to_a_longer_unit() -> None:
    held, long = unit(0, 1.0), unit(1, 9.0)
    placement = filled((held, 2), (long, 3), holds={0: frozenset({2}), 1: frozenset({3})})
    assert placement.take(0) is held


def test_a_visit_that_nobody_holds_competes_with_held_ones() -> None:
    held, evals = unit(0, 1.0), unit(1, 9.0)
    placement = filled((held, 2), (evals, -1), holds={0: frozenset({2})})
    assert [placement.take(0), placement.take(0)] == [evals, held]


def test_a_worker_without_work_of_its_own_takes_the_longest_of_others() -> None:
    short, long = unit(0, 1.0), unit(1, 2.0)
    placement = filled(
        (short, 0), (long, 1), holds={0: frozenset({0}), 1: frozenset({1}), 2: frozenset({2})}
    )
    assert [placement.take(2), placement.take(1), placement.take(0)] == [long, short, None]


def test_a_measured_unit_comes_after_one_never_measured() -> None:
    measured, fresh = unit(0, 100.0), unit(1, 0.01)
    measured.advance(3600.0)
    placement = filled((measured, 0), (fresh, 0), holds={0: frozenset()})
    assert placement.take(0) is fresh


def test_a_closed_unit_is_not_taken() -> None:
    gone = unit(0)
    placement = filled((gone, 0), holds={0: frozenset({0})})
    gone.entry = None
    assert placement.take(0) is None
    assert placement.take_longest() is None


def test_longest_is_over_held_and_free_visits() -> None:
    short, middle, long = unit(0, 1.0), unit(1, 2.0), unit(2, 4.0)
    placement = filled((short, -1), (middle, 0), (long, -1), holds={0: frozenset({0})})
    assert [placement.take_longest() for _ in range(4)] == [long, middle, short, None]


def test_what_waits_moves_home_when_its_holder_joins() -> None:
    here, long = unit(0, 1.0), unit(1, 2.0)
    placement = filled((here, 0), (long, 1), holds={0: frozenset()})
    placement.join(1, frozenset({0}))
    placement.join(2, frozenset({1}))
    assert [placement.take(1), placement.take(1)] == [here, long]


def test_what_waits_is_free_again_when_its_holder_is_lost() -> None:
    state = unit(0)
    placement = filled((state, 0), holds={0: frozenset({0}), 1: frozenset()})
    placement.lose(0)
    assert list(placement.ready()) == [state]
    assert placement.take(1) is state


def test_a_worker_that_joins_again_holds_what_it_says_now() -> None:
    placement = filled((unit(0), 2), holds={0: frozenset({1}), 1: frozenset()})
    placement.join(0, frozenset({2}))
    assert placement.choose(2) == 0


@pytest.mark.parametrize(
    ("holds", "shard", "chosen"),
    [
        ({0: (), 1: (), 2: ()}, 1, 2),
        ({0: (1,), 1: (), 2: ()}, 1, 0),
        ({0: (1,), 1: (1,), 2: (1,)}, 1, 2),
        ({0: (1,), 1: (2,), 2: ()}, 3, 2),
        ({0: (1,), 1: (1,), 2: ()}, -1, 2),
    ],
)
def test_the_idle_worker_that_holds_the_shard_is_chosen_else_the_latest(
    holds: dict[int, tuple[int, ...]], shard: int, chosen: int
) -> None:
    homes = {worker: frozenset(shards) for worker, shards in holds.items()}
    placement = filled((unit(0), 0), holds=homes)
    assert placement.choose(shard) == chosen


def test_few_idle_workers_are_searched_where_many_hold_the_shard() -> None:
    homes = {worker: frozenset({1}) for worker in range(5)} | {5: frozenset()}
    placement = filled((unit(0), 1), holds=homes)
    for worker in range(4):
        del placement.idle[worker]
    assert placement.choose(1) == 4


def test_entries_served_elsewhere_do_not_pile_up() -> None:
    placement = filled(holds={0: frozenset({0, 1, 2, 3})})
    state = unit(0)
    for _ in range(10_000):
        placement.push(state, 0)
        assert placement.take(0) is state
    assert len(placement._held._rungs[state.rung()]) < 3000


def test_a_ladder_keeps_only_entries_that_count_when_cleaned() -> None:
    ladder, states = Ladder(), [unit(0), unit(1)]
    for number, state in enumerate(states):
        state.entry = (state.rung(), -number, state)
        ladder.push(state.entry)
    states[1].entry = None
    assert ladder.clean() == 1
    assert ladder.live() == [states[0].entry]


def test_a_unit_of_unmeasurably_short_visits_has_a_rung() -> None:
    state = unit(0)
    state.left = 0
    assert isinstance(state.rung(), int)


@pytest.mark.parametrize(
    "bad",
    [
        Unit(0, (), 0, 1),
        Unit(0, (0,), 0, 1, gang=2),
        Unit(0, (0,), 0, 0),
        Unit(0, (0,), -1, 1),
        Unit(0, (0,), 0, 1, weight=0.0),
        Unit(0, (0,), 0, 1, weight=float("nan")),
    ],
)
def test_a_unit_that_cannot_be_planned_is_refused(bad: Unit) -> None:
    with pytest.raises(ValueError, match=r"must hold"):
        check_unit(bad)
