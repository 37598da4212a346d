from __future__ import annotations

import time

import pytest

from cerebro.backend.base import Done
from cerebro.run.history import RunHistory
from cerebro.run.reporter import Reporter
from cerebro.track import records
from cerebro.train.visit import MemberReport, VisitCall, VisitReport
from cerebro.types import Mode, Split, TrialStatus

CALL = VisitCall(
    unit=3,
    trials=(3,),
    params=({},),
    seed=0,
    epoch=1,
    step=0,
    steps=2,
    split=Split.TRAIN,
    shard=1,
    attempt=0,
    batch_size=8,
)


MEMBERS = (MemberReport(sums={"loss": (1.0, 1)}),)


@pytest.fixture
def told():
    return []


@pytest.fixture
def reporter(told):
    return Reporter(told.append, workers=2)


def test_a_visit_is_told_when_it_starts(reporter, told):
    reporter.started(CALL, 1, {3}, after_save=False)
    (record,) = told
    assert record == records.VisitStarted(
        trials=(3,), epoch=1, step=0, phase="train", shard=1, worker=1, time_s=record.time_s
    )
    assert 0 <= record.time_s <= reporter.now()


def test_a_visit_is_told_with_its_means_when_it_is_done(reporter, told):
    member = MemberReport(sums={"loss": (2.0, 4)}, losses=(0.5,), first_step=9)
    report = VisitReport(rows=4, members=(member,), compute_s=0.5, hop_s=0.1)
    reporter.finished(Done(1, CALL, report, None), 2.0, 3.0, {3})
    (record,) = told
    assert record.members == (records.MemberVisit((0.5,), 9, {"loss": 0.5}),)
    assert (record.start_s, record.end_s, record.worker) == (2.0, 3.0, 1)


def test_batches_are_told_apart_from_computing(reporter, told):
    report = VisitReport(rows=4, members=MEMBERS, compute_s=0.75, load_s=0.25, data_s=0.125)
    reporter.finished(Done(0, CALL, report, None), 0.0, 1.0, {3})
    (record,) = told
    assert (record.compute_s, record.load_s, record.data_s) == (0.5, 0.25, 0.125)


def test_the_time_of_visits_adds_up_to_the_efficiency(reporter):
    report = VisitReport(rows=4, members=MEMBERS, compute_s=0.75)
    reporter.finished(Done(0, CALL, report, None), 0.0, 1.0, {3})
    reporter.finished(Done(1, CALL, report, None), 0.0, 1.0, {3})
    assert reporter.summary().efficiency == pytest.approx(0.75)


def test_a_worker_that_died_is_not_counted_until_another_takes_its_place(reporter, told):
    for worker in (0, 1):
        reporter.worker(worker, alive=True, cause=None)
    reporter.worker(1, alive=False, cause="was killed")
    died = told[-1]
    assert (died.worker, died.alive, died.cause) == (1, False, "was killed")
    report = VisitReport(rows=1, members=MEMBERS, compute_s=100.0)
    reporter.finished(Done(0, CALL, report, None), died.time_s, died.time_s + 100.0, {3})
    assert reporter.summary().capacity_s == pytest.approx(100.0)
    reporter.worker(1, alive=True, cause=None)
    assert reporter.summary().capacity_s > 150.0


def test_idling_for_a_checkpoint_is_told_apart_from_waiting(reporter, told):
    report = VisitReport(rows=1, members=MEMBERS, compute_s=1.0)
    reporter.started(CALL, 0, {3}, after_save=True)
    reporter.finished(Done(0, CALL, report, None), 0.0, 0.0, {3})
    reporter.answered(0)
    reporter.started(CALL, 0, {3}, after_save=True)
    reporter.finished(Done(0, CALL, report, None), 1.0, 2.0, {3})
    reporter.started(CALL, 0, {3}, after_save=False)
    reporter.finished(Done(0, CALL, report, None), 2.0, 3.0, {3})
    first, second, third = (told[index].checkpoint_s for index in (1, 3, 5))
    assert first == 0.0
    assert 0.0 < second <= told[2].time_s
    assert third == 0.0


@pytest.mark.parametrize("kind", ["visit", "dropped", "driver"])
def test_what_people_need_not_see_is_not_told(reporter, told, kind):
    reporter.durable({"type": kind, "trial": 0}, RunHistory(2, 100, "val_loss", Mode.MIN))
    assert told == []


def test_an_epoch_and_an_end_are_told_once_they_are_durable(reporter, told):
    history = RunHistory(2, 100, "val_loss", Mode.MIN)
    history.apply({"type": "trial", "trial": 3, "params": {}, "start": 0})
    metrics = {"val_loss": 0.5}
    epoch = {"type": "epoch", "trial": 3, "epoch": 0, "metrics": metrics, "seconds": 1.5}
    end = {"type": "trial_end", "trial": 3, "status": "failed", "error": "no luck"}
    for record in (epoch, end):
        history.apply(record)
        reporter.durable(record, history)
    finished, ended = told
    assert (finished.trial, finished.epoch, finished.metrics) == (3, 0, metrics)
    assert finished.seconds == 1.5
    assert 0 < finished.durable_s <= reporter.now()
    assert (ended.status, ended.error) == (TrialStatus.FAILED, "no luck")


def test_the_clock_starts_with_the_reporter():
    before = time.perf_counter()
    reporter = Reporter(lambda record: None, 1)
    assert 0 <= reporter.now() <= time.perf_counter() - before


def test_trackers_learn_what_a_trial_repeats_and_what_it_is_a_copy_of(reporter, told):
    history = RunHistory(2, 100, "val_loss", Mode.MIN)
    added = {"type": "trial", "params": {}, "start": 0}
    for record in (
        {**added, "trial": 0, "proposal": 4, "repeat": 1},
        {**added, "trial": 1, "proposal": None, "parent": 0, "visits": 0},
    ):
        history.apply(record)
        reporter.durable(record, history)
    assert told == [
        records.TrialAdded(trial=0, params={}, proposal=4, repeat=1),
        records.TrialAdded(trial=1, params={}, parent=0, parent_epochs=0),
    ]


@pytest.mark.parametrize(("by", "person"), [("search", None), ("budget", None), ("ada", "ada")])
def test_a_pause_names_the_person_who_wanted_it(reporter, told, by, person):
    history = RunHistory(2, 100, "val_loss", Mode.MIN)
    pause = {"type": "decision", "what": "pause", "trials": [0], "by": by}
    history.apply({"type": "trial", "trial": 0, "params": {}, "start": 0}, pause)
    reporter.durable(pause, history)
    paused = TrialStatus.PAUSED
    assert told == [records.TrialChanged(trial=0, status=paused, is_held=True, by=person)]


def test_the_end_of_the_run_names_nobody_for_each_trial(reporter, told):
    history = RunHistory(2, 100, "val_loss", Mode.MIN)
    halt = {"type": "decision", "what": "halt", "by": "ada", "reason": "stopped by a command"}
    history.apply({"type": "trial", "trial": 0, "params": {}, "start": 0}, halt)
    reporter.durable(halt, history)
    assert [(record.status, record.by) for record in told] == [(TrialStatus.STOPPED, None)]
