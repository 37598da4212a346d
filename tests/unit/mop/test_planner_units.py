"""Units of several trials: some leave, or all go on in other units."""

from __future__ import annotations

import pytest

from cerebro.mop import (
    Cause,
    EpochEnded,
    Finished,
    Phase,
    Planner,
    Start,
    Unit,
    UnitAdded,
    UnitExtended,
    UnitFailed,
    UnitFinished,
    UnitReduced,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    validate,
)

STACK = Unit(id=-1, trials=(0, 1, 2), start=0, epochs=3)


def planner_with(unit: Unit = STACK, shards: int = 2, val: int = 0, **added) -> Planner:
    planner = Planner(shards, val, max_lag=None)
    planner.handle(WorkerJoined(0))
    planner.handle(UnitAdded(unit, **added))
    return planner


def finish(planner: Planner):
    """Answer the visit that runs; what is started and told then."""
    ((worker, visit),) = planner.running().items()
    unit, epoch, step, phase, _, attempt = visit
    return planner.handle(VisitDone(unit, epoch, step, phase, attempt, worker, 1.0))


def started(instructions) -> list[tuple[int, ...]]:
    return [one.trials for one in instructions if isinstance(one, Start)]


def test_trials_leave_when_the_next_epoch_begins():
    planner = planner_with()
    assert planner.handle(UnitReduced(-1, (0, 2))) == []
    assert started(finish(planner)) == [(0, 1, 2)]
    assert started(finish(planner)) == [(0, 2)]
    validate(planner)


def test_a_visit_of_the_epoch_is_tried_again_with_all():
    planner = planner_with()
    planner.handle(UnitReduced(-1, (2,)))
    failed = VisitFailed(-1, 0, 0, Phase.TRAIN, 0, 0, Cause.ERROR, "x")
    assert started(planner.handle(failed)) == [(0, 1, 2)]


def test_evaluations_have_all_trials_of_the_epoch():
    planner = planner_with(shards=1, val=1)
    planner.handle(UnitReduced(-1, (1,)))
    assert started(finish(planner)) == [(0, 1, 2)]
    assert started(finish(planner)) == [(1,)]


def test_a_unit_that_nobody_stays_in_is_closed_at_once():
    planner = planner_with()
    assert planner.handle(UnitReduced(-1, ())) == [Finished()]
    assert planner.finished
    assert finish(planner) == []
    assert planner.handle(UnitReduced(-1, ())) == []
    validate(planner)


def test_nobody_joins_a_unit():
    planner = planner_with()
    planner.handle(UnitReduced(-1, (0, 1)))
    for trials in ((0, 2), (7,)):
        with pytest.raises(ValueError, match="none joins it"):
            planner.handle(UnitReduced(-1, trials))


def test_a_unit_may_be_added_with_some_about_to_leave():
    planner = planner_with(epoch=1, step=1, staying=(1,))
    ((_, visit),) = planner.running().items()
    assert (visit.epoch, visit.step) == (1, 1)
    assert started(finish(planner)) == [(1,)]


def test_where_no_visit_of_the_epoch_is_left_the_next_begins_without_them():
    planner = Planner(2, 0, max_lag=None)
    planner.handle(WorkerJoined(0))
    told = planner.handle(UnitAdded(STACK, epoch=0, step=2, staying=(0, 1)))
    assert told[0] == EpochEnded(-1, 0)
    assert started(told) == [(0, 1)]


def test_a_unit_that_failed_is_replaced_by_others_that_go_on_where_it_was():
    planner = planner_with(epoch=1, step=1)
    for attempt in range(2):
        failed = VisitFailed(-1, 1, 1, Phase.TRAIN, attempt, 0, Cause.ERROR, "x")
        told = planner.handle(failed)
    assert isinstance(told[0], UnitFailed)
    for trial in STACK.trials:
        planner.handle(UnitAdded(Unit(trial, (trial,), 0, 3), epoch=1, step=1))
        validate(planner)
    ends = []
    while not planner.finished:
        ends += [one for one in finish(planner) if isinstance(one, UnitFinished)]
    assert sorted(ends) == [UnitFinished(trial) for trial in STACK.trials]


def visited(planner: Planner, number: int) -> list[tuple[int, int]]:
    """Unit and epoch of the next visits."""
    found = []
    for _ in range(number):
        (visit,) = planner.running().values()
        found.append(visit[:2])
        finish(planner)
        validate(planner)
    return found


def test_one_that_is_extended_comes_before_those_with_less_to_do():
    planner = planner_with(Unit(0, (0,), 0, epochs=2))
    for number in (1, 2):
        planner.handle(UnitAdded(Unit(number, (number,), 0, epochs=2)))
    assert planner.handle(UnitExtended(1, 4)) == []
    assert visited(planner, 5)[1:] == [(1, 0), (2, 0), (1, 0), (1, 1)]


def test_one_that_runs_goes_on_for_as_many_epochs_and_what_is_less_changes_nothing():
    planner = planner_with(Unit(0, (0,), 0, epochs=1), val=1)
    planner.handle(UnitExtended(0, 2))
    planner.handle(UnitExtended(0, 1))
    assert visited(planner, 6) == [(0, 0)] * 3 + [(0, 1)] * 3
    assert planner.finished
    assert planner.handle(UnitExtended(0, 3)) == []
    assert planner.finished


def test_one_that_waits_for_its_eval_visits_is_extended():
    planner = planner_with(Unit(0, (0,), 0, epochs=1), shards=1, val=2)
    finish(planner)
    planner.handle(UnitExtended(0, 2))
    assert visited(planner, 5) == [(0, 0)] * 2 + [(0, 1)] * 3
    assert planner.finished
