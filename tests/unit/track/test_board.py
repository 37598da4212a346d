from __future__ import annotations

import dataclasses
import math

import pytest

from cerebro.testing.tracker_contract import (
    Shape,
    begun,
    epoch_metrics,
    resumed_run,
    small_run,
    started,
    visit,
)
from cerebro.track.board import Board
from cerebro.track.history import History, Timeline
from cerebro.track.ranking import Criteria, TrialRow, rank
from cerebro.track.records import (
    EpochFinished,
    RunFinished,
    TrialAdded,
    TrialFinished,
    VisitFinished,
    VisitStarted,
    WorkerChanged,
)
from cerebro.types import Mode, TrialStatus


def test_a_finished_run_has_done_all_its_visits() -> None:
    board = Board()
    for record in small_run():
        board.record(record)
    assert board.visits_done == board.visits_total == 18
    assert not any(row.visits for row in board.rows.values())


def test_a_resumed_run_counts_what_was_done_before() -> None:
    board = Board()
    for record in resumed_run():
        board.record(record)
    assert board.visits_done == board.visits_total == 18


def test_no_more_visits_are_planned_than_the_budget_allows() -> None:
    """Two epochs of three visits are paid for; a trial that ends early has cost what it trained."""
    board = Board()
    board.record(dataclasses.replace(started(), max_epochs=2))
    assert board.visits_total == 6
    board.record(begun(visit((0,), 0, 0)))
    board.record(visit((0,), 0, 0))
    board.record(TrialFinished(trial=0, status=TrialStatus.DIVERGED, error="x"))
    assert (board.visits_done, board.visits_total) == (6, 11)
    for epoch in (0, 1):
        metrics = epoch_metrics(1, epoch)
        board.record(EpochFinished(trial=1, epoch=epoch, metrics=metrics, seconds=1.0))
    assert (board.visits_done, board.visits_total) == (12, 12)


def test_visits_that_are_done_anew_are_counted_once() -> None:
    board = Board()
    board.record(started())
    for step in (0, 1, 0):
        board.record(visit((0,), 0, step))
    assert board.visits_done == 1
    board.record(visit((0,), 0, 1))
    for _ in range(2):
        board.record(visit((0,), 0, 2))
    assert board.visits_done == 3


def test_a_lost_worker_holds_no_visit() -> None:
    board = Board()
    records = [r for r in small_run() if isinstance(r, VisitStarted)]
    board.record(records[0])
    board.record(WorkerChanged(worker=records[0].worker, alive=False, cause=None, time_s=1.0))
    assert board.rows[0].visits == {}


def test_a_visit_that_failed_makes_room_for_the_next_on_its_worker() -> None:
    board = Board()
    for record in small_run():
        if isinstance(record, VisitStarted):
            board.record(record)
    assert sum(len(row.visits) for row in board.rows.values()) == 2


def test_a_visit_of_a_stack_is_a_visit_of_each_of_its_trials() -> None:
    board = Board()
    board.record(started())
    done = visit((0, 1, 2), 0, 0)
    board.record(begun(done))
    assert [row.visits for row in board.rows.values()] == [{0: ("train", 0)}] * 3
    board.record(done)
    assert not board.in_flight
    assert not any(row.visits for row in board.rows.values())
    assert board.visits_done == 3
    assert board.rows[2].loss == done.members[2].metrics["loss"]


@pytest.mark.parametrize("stack", [2, 3])
def test_a_finished_run_of_stacks_has_done_all_its_visits(stack: int) -> None:
    board = Board()
    for record in small_run(shape=Shape(stack=stack)):
        board.record(record)
    assert board.visits_done == board.visits_total == 18


def test_a_lost_worker_holds_no_stack() -> None:
    board = Board()
    board.record(begun(visit((0, 1), 0, 0)))
    board.record(WorkerChanged(worker=0, alive=False, cause=None, time_s=1.0))
    assert not board.in_flight
    assert not any(row.visits for row in board.rows.values())


def test_trials_are_counted_by_status() -> None:
    board = Board()
    for trial in range(5):
        board.record(TrialAdded(trial=trial, params={}))
    board.record(begun(visit((0, 1, 2), 0, 0)))
    board.record(TrialFinished(trial=1, status=TrialStatus.DIVERGED, error="x"))
    counts = {status: count for status, count in board.statuses.items() if count}
    running, pending, diverged = TrialStatus.RUNNING, TrialStatus.PENDING, TrialStatus.DIVERGED
    assert counts == {running: 2, pending: 2, diverged: 1}


def test_the_ranking_follows_every_change() -> None:
    board = Board()
    board.record(started())
    assert board.ranked().rows == []
    for trial in (0, 1):
        board.record(TrialAdded(trial=trial, params={}))
    assert [row.trial for row in board.ranked().rows] == [0, 1]
    metrics = epoch_metrics(1, 0)
    board.record(EpochFinished(trial=1, epoch=0, metrics=metrics, seconds=1.0))
    assert [row.trial for row in board.ranked().rows] == [1, 0]
    board.record(TrialFinished(trial=1, status=TrialStatus.FAILED, error="x"))
    assert [row.trial for row in board.ranked().rows] == [0, 1]


def test_trials_are_not_sorted_again_for_visits(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board()
    board.record(started())
    board.record(TrialAdded(trial=0, params={}))
    before = board.ranked()
    monkeypatch.setattr("cerebro.track.board.rank", None)
    done = visit(0, 0, 0)
    board.record(begun(done))
    board.record(done)
    assert board.ranked() == before


def test_a_trial_that_ends_early_leaves_no_visits_to_do() -> None:
    board = Board()
    board.record(started())
    board.record(TrialFinished(trial=0, status=TrialStatus.FAILED, error="x"))
    assert board.visits_done == 6


def test_the_metric_is_the_best_over_epochs() -> None:
    board = Board()
    board.record(started())
    board.record(TrialAdded(trial=0, params={}))
    for epoch, value in enumerate([0.5, math.nan, 0.9, math.inf, 0.7]):
        metrics = {"val_accuracy": value}
        board.record(EpochFinished(trial=0, epoch=epoch, metrics=metrics, seconds=1.0))
    assert (board.rows[0].metric, board.rows[0].best_epoch) == (0.9, 2)


@pytest.mark.parametrize(("mode", "order"), [(Mode.MAX, [2, 1, 0, 3]), (Mode.MIN, [0, 1, 2, 3])])
def test_rows_are_ranked_by_mode_and_those_without_a_value_come_last(
    mode: Mode, order: list[int]
) -> None:
    rows = [TrialRow(trial=n, params={}, metric=n / 10) for n in range(3)]
    rows.append(TrialRow(trial=3, params={}))
    assert [row.trial for row in rank(rows, Criteria(metric="m", mode=mode)).rows] == order


def test_equal_values_are_ranked_by_number() -> None:
    rows = [TrialRow(trial=n, params={}, metric=1.0) for n in (2, 0, 1)]
    assert [row.trial for row in rank(rows, Criteria(metric="m", mode=Mode.MAX)).rows] == [0, 1, 2]


def test_speed_and_time_left_follow_the_visits() -> None:
    board = Board()
    for record in list(small_run())[:-4]:
        board.record(record)
    assert board.visits_per_s == pytest.approx(18 / 1.2)
    assert board.eta_s == pytest.approx(0.0)


def test_a_full_timeline_counts_what_it_leaves_out() -> None:
    timeline = Timeline(limit=5)
    for record in small_run():
        if isinstance(record, VisitFinished):
            timeline.add(record)
    assert (len(timeline), timeline.left_out) == (5, 13)


def test_a_visit_of_a_stack_is_one_in_the_timeline_and_in_the_efficiency() -> None:
    history = History()
    for record in small_run(shape=Shape(stack=2)):
        history.record(record)
    assert isinstance(record, RunFinished)
    assert len(history.timeline) == record.summary.visits == 12
    assert history.timeline.stacks == [(0, 1), (2,)]


def test_curves_have_one_value_an_epoch() -> None:
    history = History()
    for record in resumed_run():
        history.record(record)
    assert list(history.curves[1]["val_accuracy"]) == [0.6, 0.61]


def test_a_trial_that_has_ended_is_never_running_again() -> None:
    board = Board()
    board.record(TrialFinished(trial=1, status=TrialStatus.DIVERGED, error="loss is nan"))
    start = VisitStarted(
        trials=(0, 1), epoch=0, step=1, phase="train", shard=1, worker=0, time_s=1.0
    )
    board.record(start)
    assert board.rows[1].status is TrialStatus.DIVERGED
    assert board.rows[1].visits == {}
    assert board.rows[0].status is TrialStatus.RUNNING


def test_what_is_behind_a_copy_is_not_to_be_done() -> None:
    board = Board()
    board.record(started(shape=Shape(trials=1)))
    board.record(TrialAdded(trial=0, params={}))
    board.record(visit(0, 0, 0))
    whole_s = board.eta_s
    board.record(TrialAdded(trial=1, params={}, parent=0, parent_epochs=2))
    assert (board.rows[1].epochs, board.visits_done) == (2, 1 + 6)
    assert board.eta_s == pytest.approx(whole_s)
