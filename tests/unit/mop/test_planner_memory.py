"""A visit that was out of memory is tried again alone; one that is tried differently counts not."""

from __future__ import annotations

from cerebro.mop.failures import Cause
from cerebro.mop.invariants import validate
from cerebro.mop.messages import (
    Drain,
    Finished,
    Start,
    UnitFailed,
    UnitPaused,
    UnitStopped,
    WorkerJoined,
    WorkerLost,
)
from cerebro.mop.planner import Planner
from tests.unit.mop.test_planner import EVAL, At, done, failed, joined, planner, short, unit

MEMORY = Cause.MEMORY


def out_of_memory(plan: Planner, number: int) -> list[object]:
    """The visit of this unit that runs is out of memory."""
    worker, visit = next((w, v) for w, v in plan.running().items() if v.unit == number)
    event = failed(number, visit.step, worker, phase=visit.phase, attempt=visit.attempt)
    return short(plan.handle(event._replace(cause=MEMORY)))


def finish(plan: Planner, number: int) -> list[object]:
    worker, visit = next((w, v) for w, v in plan.running().items() if v.unit == number)
    answer = done(number, visit.step, worker, phase=visit.phase, attempt=visit.attempt)
    told = plan.handle(answer._replace(epoch=visit.epoch))
    validate(plan)
    return short(told)


def units_of(told: list[object]) -> list[int]:
    return [start.unit for start in told if isinstance(start, At)]


def running(plan: Planner) -> list[int]:
    return sorted(visit.unit for visit in plan.running().values())


def test_it_starts_once_nothing_else_runs_and_nothing_starts_meanwhile() -> None:
    plan = planner(*joined(0, 1, 2), unit(0), unit(1), unit(2), unit(3))
    assert out_of_memory(plan, 0) == []
    assert finish(plan, 1) == []
    assert units_of(finish(plan, 2)) == [0]
    assert running(plan) == [0]
    assert [visit.attempt for visit in plan.running().values()] == [1]
    assert short(plan.handle(WorkerJoined(7))) == []
    # Then all the others go on.
    assert len(units_of(finish(plan, 0))) == 4


def test_the_second_time_its_unit_fails_and_the_others_go_on() -> None:
    plan = planner(*joined(0, 1), unit(0), unit(1))
    out_of_memory(plan, 0)
    finish(plan, 1)
    failure, *starts = out_of_memory(plan, 0)
    assert isinstance(failure, UnitFailed)
    assert failure.cause is MEMORY
    assert failure.reason.startswith("out of memory 2 times")
    assert units_of(starts) == [1]


def test_a_worker_that_the_system_killed_for_memory_counts_as_well() -> None:
    plan = planner(*joined(0, 1), unit(0))
    for attempt in range(2):
        (worker,) = plan.running()
        assert plan.running()[worker].attempt == attempt
        told = plan.handle(WorkerLost(worker, MEMORY))
    assert isinstance(told[0], UnitFailed)
    assert told[0].cause is MEMORY


def test_several_take_turns_before_the_others_go_on() -> None:
    plan = planner(*joined(0, 1, 2), unit(0), unit(1), unit(2))
    out_of_memory(plan, 0)
    out_of_memory(plan, 1)
    assert units_of(finish(plan, 2)) == [0]
    assert units_of(finish(plan, 0)) == [1]
    assert sorted(units_of(finish(plan, 1))) == [0, 1, 2]


def test_an_error_of_the_one_that_is_alone_leaves_it_alone() -> None:
    plan = planner(*joined(0, 1), unit(0), unit(1))
    out_of_memory(plan, 0)
    finish(plan, 1)
    (worker,) = plan.running()
    (again,) = short(plan.handle(failed(0, 0, worker, attempt=1)))
    assert isinstance(again, At)
    assert (again.unit, again.attempt) == (0, 2)
    assert running(plan) == [0]


def test_when_it_is_not_wanted_any_more_the_others_go_on() -> None:
    for event in (UnitStopped(0), UnitPaused(0)):
        plan = planner(*joined(0, 1, 2), unit(0), unit(1), unit(2), unit(3))
        out_of_memory(plan, 0)
        plan.handle(event)
        validate(plan)
        assert 0 not in units_of(finish(plan, 1))
        assert len(running(plan)) == 3


def test_when_its_worker_dies_and_nobody_tries_it_again_the_others_go_on() -> None:
    plan = planner(*joined(0, 1), unit(0), unit(1))
    out_of_memory(plan, 0)
    finish(plan, 1)
    (worker,) = plan.running()
    plan.handle(UnitStopped(0))
    assert units_of(short(plan.handle(WorkerLost(worker)))) == [1]


def test_eval_visits_are_tried_alone_too() -> None:
    plan = planner(*joined(0, 1), unit(0), train=1, val=3)
    finish(plan, 0)
    assert {visit.phase for visit in plan.running().values()} == {EVAL}
    assert out_of_memory(plan, 0) == []
    assert len(plan.running()) == 1
    (start,) = finish(plan, 0)
    assert isinstance(start, At)
    assert (start.phase, start.attempt) == (EVAL, 1)
    assert len(plan.running()) == 1
    while plan.running():
        told = finish(plan, 0)
    assert told[-1] == Finished()


def test_a_plan_that_drains_does_not_try_it_again() -> None:
    plan = planner(*joined(0, 1), unit(0), unit(1), Drain())
    assert out_of_memory(plan, 0) == []
    assert finish(plan, 1) == []
    assert plan.running() == {}


def test_an_attempt_that_does_not_count_may_be_repeated_for_ever() -> None:
    plan = planner(*joined(0), unit(0))
    for attempt in range(20):
        told = plan.handle(failed(0, 0, 0, attempt=attempt, cause=Cause.AGAIN))
        validate(plan)
        assert isinstance(told[0], Start)
        assert told[0].visit.attempt == attempt + 1
    failure = plan.handle(failed(0, 0, 0, attempt=20, cause=Cause.ERROR))
    assert isinstance(failure[0], Start)
