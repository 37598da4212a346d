"""Units that wait, and go on when they are added again."""

from __future__ import annotations

import pytest

from cerebro.mop import (
    Cause,
    Durable,
    EpochEnded,
    Finished,
    Instruction,
    Phase,
    Planner,
    Start,
    Unit,
    UnitAdded,
    UnitFinished,
    UnitPaused,
    UnitStopped,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    from_dict,
    to_dict,
    validate,
)

UNIT = Unit(id=5, trials=(5,), start=1, epochs=1)


def planner_with(*units: Unit, shards: int = 2, val: int = 0, lag: int | None = None) -> Planner:
    planner = Planner(shards, val, max_lag=lag)
    planner.handle(WorkerJoined(0))
    for unit in units:
        planner.handle(UnitAdded(unit))
    return planner


def finish(planner: Planner) -> list[Instruction]:
    """Answer the visit that runs; what is started and told then."""
    ((worker, visit),) = planner.running().items()
    unit, epoch, step, phase, _, attempt = visit
    told = planner.handle(VisitDone(unit, epoch, step, phase, attempt, worker, 1.0))
    validate(planner)
    return told


def started(told: list[Instruction]) -> list[tuple[int, int, int]]:
    return [one.visit[:3] for one in told if isinstance(one, Start)]


def test_a_paused_unit_ends_its_visit_and_starts_no_other() -> None:
    planner = planner_with(UNIT)
    assert planner.handle(UnitPaused(5)) == []
    assert finish(planner) == []
    assert planner.progress(5) == (0, 1)
    assert not planner.finished


def test_a_paused_unit_leaves_its_worker_to_others() -> None:
    planner = planner_with(UNIT, UNIT._replace(id=6, trials=(6,)))
    planner.handle(UnitPaused(5))
    while planner.running():
        told = finish(planner)
    assert told == [EpochEnded(6, 0), UnitFinished(6)]
    assert planner.idle == (0,)


def test_a_unit_that_waits_for_a_worker_is_paused_at_once() -> None:
    planner = planner_with(UNIT, UNIT._replace(id=6, trials=(6,)))
    planner.handle(UnitPaused(6))
    told = [start for _ in range(2) for start in started(finish(planner))]
    assert told == [(5, 0, 1)]


@pytest.mark.parametrize("cause", [Cause.ERROR, Cause.LOST, Cause.AGAIN, Cause.MEMORY])
def test_a_failed_visit_of_a_paused_unit_is_not_tried_again(cause: Cause) -> None:
    planner = planner_with(UNIT)
    planner.handle(UnitPaused(5))
    assert planner.handle(VisitFailed(5, 0, 0, Phase.TRAIN, 0, 0, cause, "x")) == []
    validate(planner)


def test_a_paused_unit_evaluates_nothing() -> None:
    planner = planner_with(UNIT, shards=1, val=2)
    planner.handle(UnitPaused(5))
    assert finish(planner) == []
    planner = planner_with(UNIT, shards=1, val=2)
    finish(planner)
    planner.handle(UnitPaused(5))
    assert finish(planner) == []


def test_what_becomes_durable_starts_nothing_of_a_paused_unit() -> None:
    planner = planner_with(UNIT, shards=3, lag=0)
    finish(planner)
    planner.handle(UnitPaused(5))
    assert planner.handle(Durable(5, 1)) == []
    validate(planner)


def test_a_paused_unit_goes_on_where_it_was_once_it_is_taken_out_and_added_again() -> None:
    planner = planner_with(UNIT)
    planner.handle(UnitPaused(5))
    finish(planner)
    assert planner.handle(UnitStopped(5)) == [Finished()]
    assert started(planner.handle(UnitAdded(UNIT, epoch=0, step=1))) == [(5, 0, 1)]
    assert finish(planner) == [EpochEnded(5, 0), UnitFinished(5), Finished()]


def test_a_finished_unit_goes_further_when_it_is_added_with_more_epochs() -> None:
    planner = planner_with(UNIT, shards=1)
    assert finish(planner) == [EpochEnded(5, 0), UnitFinished(5), Finished()]
    assert started(planner.handle(UnitAdded(UNIT._replace(epochs=3), epoch=1))) == [(5, 1, 0)]
    assert not planner.finished
    assert started(finish(planner)) == [(5, 2, 0)]
    assert finish(planner) == [EpochEnded(5, 2), UnitFinished(5), Finished()]


def test_a_unit_is_not_added_again_while_something_of_it_runs() -> None:
    planner = planner_with(UNIT)
    with pytest.raises(ValueError, match="unit 5 is there already"):
        planner.handle(UnitAdded(UNIT))
    planner.handle(UnitStopped(5))
    with pytest.raises(ValueError, match="nothing of it runs"):
        planner.handle(UnitAdded(UNIT))
    finish(planner)
    assert started(planner.handle(UnitAdded(UNIT))) == [(5, 0, 0)]


def test_a_pause_of_a_closed_unit_changes_nothing() -> None:
    planner = planner_with(UNIT, shards=1)
    finish(planner)
    assert planner.handle(UnitPaused(5)) == []
    assert planner.finished
    validate(planner)


def test_a_pause_of_an_unknown_unit_is_an_error() -> None:
    with pytest.raises(ValueError, match="must be added before"):
        planner_with().handle(UnitPaused(5))


def test_a_pause_survives_json() -> None:
    assert from_dict(to_dict(UnitPaused(5))) == UnitPaused(5)
