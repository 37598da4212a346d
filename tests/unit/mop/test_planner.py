from __future__ import annotations

from typing import NamedTuple

import pytest

from cerebro.mop.failures import Cause
from cerebro.mop.messages import (
    Drain,
    Durable,
    EpochEnded,
    Event,
    Finished,
    Instruction,
    Start,
    UnitAdded,
    UnitFinished,
    UnitStopped,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    WorkerLost,
)
from cerebro.mop.planner import Planner
from cerebro.mop.visit import Phase, Unit, Visit

TRAIN, EVAL = Phase.TRAIN, Phase.EVAL


class At(NamedTuple):
    """A start, short: unit, epoch, step, worker, then what is not the default."""

    unit: int
    epoch: int
    step: int
    worker: int
    phase: Phase = TRAIN
    attempt: int = 0


def short(instructions: list[Instruction]) -> list[object]:
    return [
        At(i.visit.unit, i.visit.epoch, i.visit.step, i.workers[0], i.visit.phase, i.visit.attempt)
        if isinstance(i, Start)
        else i
        for i in instructions
    ]


def planner(*events: Event, train: int = 3, val: int = 0, lag: int | None = None) -> Planner:
    made = Planner(train, val, max_lag=lag)
    for event in events:
        made.handle(event)
    return made


def unit(number: int, epochs: int = 1, start: int = 0, weight: float = 1.0) -> UnitAdded:
    return UnitAdded(Unit(number, (number,), start, epochs, weight=weight))


def joined(*workers: int) -> list[WorkerJoined]:
    return [WorkerJoined(worker) for worker in workers]


def done(
    number: int, step: int, worker: int, *, epoch: int = 0, phase: Phase = TRAIN, attempt: int = 0
) -> VisitDone:
    return VisitDone(number, epoch, step, phase, attempt, worker, 1.0)


def failed(
    number: int,
    step: int,
    worker: int,
    signature: str = "E",
    *,
    phase: Phase = TRAIN,
    attempt: int = 0,
    cause: Cause = Cause.ERROR,
) -> VisitFailed:
    return VisitFailed(number, 0, step, phase, attempt, worker, cause, signature)


def test_a_start_names_visit_trials_and_worker() -> None:
    plan = planner(WorkerJoined(4))
    stack = Unit(9, (9, 10, 11), start=2, epochs=1)
    assert plan.handle(UnitAdded(stack)) == [
        Start(Visit(9, 0, 0, TRAIN, shard=2, attempt=0), (9, 10, 11), (4,))
    ]


def test_a_unit_waits_for_a_worker() -> None:
    plan = planner(unit(0))
    assert short(plan.handle(WorkerJoined(1))) == [At(0, 0, 0, 1)]


def test_a_unit_goes_through_its_shards_in_rotation() -> None:
    plan = planner(*joined(0), unit(0, epochs=2, start=1))
    shards = []
    for epoch in range(2):
        for step in range(3):
            shards.append(plan.running()[0].shard)
            plan.handle(done(0, step, 0, epoch=epoch))
    assert shards == [1, 2, 0, 2, 0, 1]


def test_the_last_answer_ends_epoch_unit_and_plan() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), done(0, 1, 0))
    assert plan.handle(done(0, 2, 0)) == [EpochEnded(0, 0), UnitFinished(0), Finished()]
    assert plan.finished
    assert plan.progress(0) == (1, 0)


def test_a_unit_goes_on_into_its_next_epoch_at_once() -> None:
    plan = planner(*joined(0), unit(0, epochs=2), done(0, 0, 0), done(0, 1, 0))
    assert short(plan.handle(done(0, 2, 0))) == [EpochEnded(0, 0), At(0, 1, 0, 0)]


def test_eval_visits_spread_over_idle_workers() -> None:
    plan = planner(*joined(0, 1), unit(0), train=1, val=3)
    assert sorted(map(str, short(plan.handle(done(0, 0, 1))))) == sorted(
        map(str, [At(0, 0, 0, 1, EVAL), At(0, 0, 1, 0, EVAL)])
    )
    assert short(plan.handle(done(0, 0, 1, phase=EVAL))) == [At(0, 0, 2, 1, EVAL)]


def test_an_epoch_ends_with_its_last_eval_visit_in_whatever_order() -> None:
    plan = planner(*joined(0, 1), unit(0, epochs=2), done(0, 0, 1), train=1, val=2)
    assert plan.handle(done(0, 1, 0, phase=EVAL)) == []
    assert short(plan.handle(done(0, 0, 1, phase=EVAL))) == [EpochEnded(0, 0), At(0, 1, 0, 1)]


def test_eval_visits_of_one_unit_overlap_training_of_another() -> None:
    plan = planner(*joined(0), unit(0, weight=5.0), *joined(1), unit(1), train=1, val=2)
    assert short(plan.handle(done(0, 0, 0))) == [At(0, 0, 0, 0, EVAL)]
    assert {visit.phase for visit in plan.running().values()} == {TRAIN, EVAL}


def test_of_the_waiting_units_the_heaviest_starts_first() -> None:
    plan = planner(*joined(0), unit(0), unit(1, weight=1.0), unit(2, weight=3.0))
    assert short(plan.handle(UnitStopped(0))) == []
    assert short(plan.handle(done(0, 0, 0))) == [At(2, 0, 0, 0)]


def test_a_unit_measured_long_goes_before_one_measured_short() -> None:
    plan = planner(*joined(0, 1), unit(0), unit(1), unit(2))
    first, second = sorted(plan.running(), key=lambda worker: plan.running()[worker].unit)
    third = plan.handle(VisitDone(0, 0, 0, TRAIN, 0, first, seconds=9.0))
    assert short(third) == [At(2, 0, 0, first)]
    longer = plan.handle(VisitDone(1, 0, 0, TRAIN, 0, second, seconds=1.0))
    assert short(longer) == [At(0, 0, 1, second)]


def test_a_free_worker_that_holds_the_shard_gets_the_visit() -> None:
    plan = planner(*(WorkerJoined(worker, frozenset({worker})) for worker in range(3)))
    assert short(plan.handle(unit(0, start=1))) == [At(0, 0, 0, 1)]
    assert short(plan.handle(done(0, 0, 1))) == [At(0, 0, 1, 2)]


def test_a_unit_alone_stays_on_its_worker() -> None:
    plan = planner(*joined(0, 1, 2), unit(0))
    worker = next(iter(plan.running()))
    assert short(plan.handle(done(0, 0, worker))) == [At(0, 0, 1, worker)]


def test_a_train_visit_waits_until_the_one_before_the_last_is_durable() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), lag=1)
    assert plan.handle(done(0, 1, 0)) == []
    assert short(plan.handle(Durable(0, 1))) == [At(0, 0, 2, 0)]


def test_a_durable_visit_that_nothing_waits_for_starts_nothing() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), lag=1)
    assert plan.handle(Durable(0, 1)) == []
    assert plan.handle(Durable(0, 0)) == []


def test_eval_visits_do_not_wait_for_durability() -> None:
    plan = planner(*joined(0), unit(0, epochs=2), done(0, 0, 0), train=2, val=1, lag=1)
    assert short(plan.handle(done(0, 1, 0))) == [At(0, 0, 0, 0, EVAL)]
    assert plan.handle(Durable(0, 1)) == []
    assert short(plan.handle(done(0, 0, 0, phase=EVAL))) == [EpochEnded(0, 0), At(0, 1, 0, 0)]


def test_the_next_epoch_waits_for_durability_too() -> None:
    plan = planner(*joined(0), unit(0, epochs=2), done(0, 0, 0), train=2, lag=1)
    assert plan.handle(done(0, 1, 0)) == [EpochEnded(0, 0)]
    assert short(plan.handle(Durable(0, 2))) == [At(0, 1, 0, 0)]


def test_a_duplicate_answer_changes_nothing() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0))
    assert plan.handle(done(0, 0, 0)) == []
    assert plan.progress(0) == (0, 1)


def test_an_old_attempt_of_a_worker_that_came_back_changes_nothing() -> None:
    plan = planner(*joined(0), unit(0), WorkerLost(0), *joined(0))
    assert plan.handle(done(0, 0, 0, attempt=0)) == []
    assert plan.handle(failed(0, 0, 0, attempt=0)) == []
    assert short(plan.handle(done(0, 0, 0, attempt=1))) == [At(0, 0, 1, 0)]


def test_a_stopped_unit_gives_its_worker_away_only_when_it_answers() -> None:
    plan = planner(*joined(0), unit(0), unit(1))
    assert plan.handle(UnitStopped(0)) == []
    assert short(plan.handle(done(0, 0, 0))) == [At(1, 0, 0, 0)]
    assert plan.progress(0) == (0, 0)


def test_stopping_the_last_unit_finishes_the_plan_once() -> None:
    plan = planner(*joined(0), unit(0))
    assert plan.handle(UnitStopped(0)) == [Finished()]
    assert plan.handle(UnitStopped(0)) == []


def test_draining_starts_nothing_more() -> None:
    plan = planner(*joined(0), unit(0), unit(1), Drain())
    assert plan.handle(done(0, 0, 0)) == []
    assert plan.handle(WorkerJoined(1)) == []
    assert plan.progress(0) == (0, 1)


def test_a_unit_resumes_where_it_was() -> None:
    plan = planner(*joined(0))
    resumed = plan.handle(UnitAdded(Unit(0, (0,), 0, 3), epoch=1, step=2))
    assert short(resumed) == [At(0, 1, 2, 0)]


def test_a_unit_resumes_with_the_eval_visits_of_its_epoch() -> None:
    plan = planner(*joined(0), val=1)
    resumed = plan.handle(UnitAdded(Unit(0, (0,), 0, 3), epoch=1, step=3))
    assert short(resumed) == [At(0, 1, 0, 0, EVAL)]


def test_a_unit_resumed_after_its_last_train_visit_ends_the_epoch_without_eval_visits() -> None:
    plan = planner(*joined(0))
    resumed = plan.handle(UnitAdded(Unit(0, (0,), 0, 1), epoch=0, step=3))
    assert resumed == [EpochEnded(0, 0), UnitFinished(0), Finished()]


def test_a_unit_added_finished_asks_for_nothing() -> None:
    plan = planner(*joined(0))
    assert plan.handle(UnitAdded(Unit(0, (0,), 0, 2), epoch=2)) == []
    assert plan.finished
    assert plan.progress(0) == (2, 0)


def test_a_plan_reopens_when_a_unit_is_added_after_the_end() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), train=1)
    assert short(plan.handle(unit(1))) == [At(1, 0, 0, 0)]
    assert plan.handle(done(1, 0, 0))[-1] == Finished()


def test_a_worker_that_joins_again_is_not_given_a_second_visit() -> None:
    plan = planner(*joined(0), unit(0), unit(1))
    assert plan.handle(WorkerJoined(0, frozenset({1}))) == []
    assert plan.workers == (0,)


@pytest.mark.parametrize(
    "event",
    [
        unit(0),
        UnitAdded(Unit(1, (1,), 0, 2), epoch=3),
        UnitAdded(Unit(1, (1,), 0, 2), step=4),
        UnitAdded(Unit(1, (), 0, 2)),
        Durable(0, 2),
        Durable(5, 0),
        UnitStopped(5),
    ],
)
def test_an_event_that_contradicts_the_plan_is_refused(event: Event) -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0))
    before = plan.running()
    with pytest.raises(ValueError, match=r"must|once"):
        plan.handle(event)
    assert plan.running() == before
