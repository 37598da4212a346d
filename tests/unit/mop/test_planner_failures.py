"""Lost workers and failed visits: what is tried again, by whom, and what has failed for good."""

from __future__ import annotations

from cerebro.mop.failures import Cause
from cerebro.mop.messages import (
    Drain,
    EpochEnded,
    Finished,
    Stalled,
    UnitFailed,
    UnitFinished,
    UnitStopped,
    WorkerJoined,
    WorkerLost,
)
from tests.unit.mop.test_planner import EVAL, At, done, failed, joined, planner, short, unit


def test_an_answer_from_a_lost_worker_changes_nothing() -> None:
    plan = planner(*joined(0, 1), unit(0))
    worker = next(iter(plan.running()))
    assert short(plan.handle(WorkerLost(worker))) == [At(0, 0, 0, 1 - worker, attempt=1)]
    assert plan.handle(done(0, 0, worker)) == []
    assert plan.progress(0) == (0, 0)


def test_losing_a_worker_twice_changes_nothing() -> None:
    plan = planner(*joined(0, 1), WorkerLost(0))
    assert plan.handle(WorkerLost(0)) == []


def test_losing_the_last_worker_stalls_the_plan() -> None:
    plan = planner(*joined(0), unit(0))
    assert plan.handle(WorkerLost(0)) == [Stalled()]


def test_losing_the_last_worker_of_a_finished_plan_is_no_stall() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), train=1)
    assert plan.handle(WorkerLost(0)) == []


def test_a_stalled_plan_goes_on_when_a_worker_joins() -> None:
    plan = planner(*joined(0), unit(0), WorkerLost(0))
    assert short(plan.handle(WorkerJoined(1))) == [At(0, 0, 0, 1, attempt=1)]


def test_a_third_death_in_one_visit_quarantines_the_unit() -> None:
    plan = planner(*joined(0, 1, 2, 3), unit(0))
    for _ in range(2):
        plan.handle(WorkerLost(next(iter(plan.running()))))
    *rest, failure, end = plan.handle(WorkerLost(next(iter(plan.running()))))
    assert rest == []
    assert isinstance(failure, UnitFailed)
    assert failure.reason.startswith("quarantined: 3 workers died")
    assert end == Finished()


def test_deaths_in_different_visits_do_not_add_up() -> None:
    plan = planner(*joined(0), unit(0), train=9)
    for step in range(9):
        plan.handle(WorkerLost(0))
        plan.handle(WorkerJoined(0))
        plan.handle(done(0, step, 0, attempt=1))
    assert plan.finished


def test_an_error_is_tried_again_on_another_worker() -> None:
    plan = planner(*joined(0, 1), unit(0))
    worker = next(iter(plan.running()))
    retry = plan.handle(failed(0, 0, worker))
    assert short(retry) == [At(0, 0, 0, 1 - worker, attempt=1)]


def test_the_worker_of_an_error_takes_another_unit_first() -> None:
    plan = planner(*joined(0), unit(0, weight=9.0), unit(1))
    assert short(plan.handle(failed(0, 0, 0))) == [At(1, 0, 0, 0)]


def test_a_lone_worker_tries_an_error_again_itself() -> None:
    plan = planner(*joined(0), unit(0))
    assert short(plan.handle(failed(0, 0, 0))) == [At(0, 0, 0, 0, attempt=1)]


def test_the_same_error_twice_fails_the_unit() -> None:
    plan = planner(*joined(0), unit(0), failed(0, 0, 0, "KeyError: 'x'"))
    where = "(epoch 0, train step 0, shard 0)"
    reason = f"2 attempts failed; the last: KeyError: 'x' {where}"
    assert plan.handle(failed(0, 0, 0, "KeyError: 'x'", attempt=1)) == [
        UnitFailed(0, reason, Cause.ERROR),
        Finished(),
    ]


def test_a_third_different_error_fails_the_unit() -> None:
    plan = planner(*joined(0), unit(0), failed(0, 0, 0, "a"), failed(0, 0, 0, "b", attempt=1))
    assert plan.running()[0].attempt == 2
    assert isinstance(plan.handle(failed(0, 0, 0, "c", attempt=2))[0], UnitFailed)


def test_divergence_fails_the_unit_at_once_and_no_other() -> None:
    plan = planner(*joined(0), unit(0), unit(1))
    failure, start = plan.handle(failed(0, 0, 0, "loss is nan", cause=Cause.DIVERGED))
    assert failure == UnitFailed(
        0, "diverged: loss is nan (epoch 0, train step 0, shard 0)", Cause.DIVERGED
    )
    assert short([start]) == [At(1, 0, 0, 0)]


def test_an_eval_visit_is_tried_again_with_the_next_attempt() -> None:
    plan = planner(*joined(0), unit(0), done(0, 0, 0), train=1, val=2)
    retry = plan.handle(failed(0, 0, 0, phase=EVAL))
    assert short(retry) == [At(0, 0, 1, 0, EVAL)]
    assert short(plan.handle(done(0, 1, 0, phase=EVAL))) == [At(0, 0, 0, 0, EVAL, attempt=1)]
    ends = [EpochEnded(0, 0), UnitFinished(0), Finished()]
    assert plan.handle(done(0, 0, 0, phase=EVAL, attempt=1)) == ends


def test_answers_of_sibling_eval_visits_of_a_failed_unit_only_free_the_worker() -> None:
    plan = planner(*joined(0, 1), unit(0, epochs=2), unit(1), train=1, val=2)
    plan.handle(UnitStopped(1))
    plan.handle(done(1, 0, 0 if plan.running()[0].unit == 1 else 1))
    plan.handle(done(0, 0, next(w for w, v in plan.running().items() if v.unit == 0)))
    first, second = plan.running()
    step = plan.running()[first].step
    plan.handle(failed(0, step, first, phase=EVAL, cause=Cause.DIVERGED))
    other = plan.running()[second].step
    assert plan.handle(done(0, other, second, phase=EVAL)) == []
    assert sorted(plan.idle) == [0, 1]


def test_a_worker_lost_under_a_stopped_unit_retries_nothing() -> None:
    plan = planner(*joined(0, 1), unit(0), UnitStopped(0))
    assert plan.handle(WorkerLost(next(iter(plan.running())))) == []


def test_a_failure_of_a_stopped_unit_only_frees_the_worker() -> None:
    plan = planner(*joined(0), unit(0), UnitStopped(0))
    assert plan.handle(failed(0, 0, 0)) == []
    assert plan.idle == (0,)


def test_a_failure_while_draining_waits() -> None:
    plan = planner(*joined(0), unit(0), Drain())
    assert plan.handle(failed(0, 0, 0)) == []
    assert plan.running() == {}
