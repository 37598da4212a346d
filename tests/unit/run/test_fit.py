from __future__ import annotations

import json
import logging
import os
import socket

import pytest

from cerebro.backend import InlineBackend
from cerebro.errors import ResumeMismatchError, RunInterrupted, UsageError
from cerebro.results import Result
from cerebro.run.fit import Settings, fit
from cerebro.run.spec import Checkpointing
from cerebro.search import make_sampler, parse_space
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.track import records
from cerebro.types import Mode, TrialStatus
from tests.experiments import fit_toy, outcome, toy_spec, trial_files
from tests.unit.run.frameworks import VersionedTask
from tests.unit.run.runs import StoppedBackend, contents, fit_until, records_of

LRS = [0.5, 0.05, 0.005]


class Notes:
    """A tracker that remembers what it was told."""

    def __init__(self):
        self.records = []

    def record(self, record):
        self.records.append(record)

    def close(self):
        pass

    def of(self, kind):
        return [record for record in self.records if isinstance(record, kind)]


class Untouchable(InlineBackend):
    """Must not be used."""

    def start(self, setup, workers):
        raise AssertionError("workers were started")


# What is kept


def kept(root, trial):
    return [name.removesuffix(".json") for name in trial_files(root, trial) if "json" in name]


@pytest.mark.parametrize("mode", Mode)
def test_a_finished_trial_has_its_last_checkpoint_and_its_best_on_disk(data, root, mode):
    fit_toy(root, toy_spec(data, {"lr": [2.0, 0.05]}, epochs=4, mode=mode))
    for trial in (0, 1):
        losses = [row["val_loss"] for row in Result.open(root).history(trial)]
        best = losses.index(min(losses) if mode is Mode.MIN else max(losses))
        expected = {f"v{2 * (best + 1):06d}-a0", "v000008-a0"}
        assert kept(root, trial) == sorted(expected)
    check(root)


def test_a_run_that_is_not_finished_has_the_last_two_and_the_best(data, root):
    spec = toy_spec(data, {"lr": [2.0]}, epochs=4, mode=Mode.MAX, metric="val_loss")
    with pytest.raises(RunInterrupted):
        fit_toy(root, spec, backend=StoppedBackend(root, 6))
    losses = [row["val_loss"] for row in Result.open(root).history(0)]
    best, last = 2 * (losses.index(max(losses)) + 1), len(records_of(root, "visit"))
    assert 6 <= last < 8
    assert set(kept(root, 0)) == {f"v{n:06d}-a0" for n in (best, last - 1, last)}
    check(root)


@pytest.mark.parametrize("top", [1, 2, 3, 10])
def test_keep_top_leaves_the_checkpoints_of_the_best_trials(data, root, top):
    fit_toy(root, toy_spec(data, {"lr": LRS}), keep_top=top)
    ranked = [row["trial"] for row in Result.open(root).leaderboard()]
    has_files = [bool(kept(root, int(trial[1:]))) for trial in ranked]
    assert has_files == [place < top for place in range(3)]
    check(root)


def test_keep_top_counts_failed_trials_last(data, root):
    spec = toy_spec(data, {"fail": [{"kind": "raise", "epoch": 1}, None], "lr": 0.5})
    fit_toy(root, spec, keep_top=1)
    assert len(Result.open(root).history(0)) == 1
    assert kept(root, 0) == []
    assert "v000004-a0" in kept(root, 1)


def test_dropped_checkpoints_are_in_the_journal_before_they_are_gone(data, root):
    fit_toy(root, toy_spec(data, {"lr": LRS}), keep_top=1)
    assert len(records_of(root, "dropped")) == 2
    assert read(DirectoryStore(root)).records[-1]["type"] == "done"


# Runs that are finished, and runs that go on


def fit_finished(root, spec, **settings):
    """What `fit` says of a run that should be finished."""
    return fit(
        spec,
        Settings(task=ToyTask(), workers=1, **settings),
        store=DirectoryStore(root),
        backend=Untouchable(),
        sampler=make_sampler(spec.search, parse_space(spec.space)),
        trackers=(),
    )


def test_a_finished_run_returns_at_once_and_changes_nothing(data, root):
    spec = toy_spec(data)
    fit_toy(root, spec)
    before = {path: path.read_bytes() for path in root.rglob("*") if path.is_file()}
    assert fit_finished(root, spec) is None
    assert {path: path.read_bytes() for path in root.rglob("*") if path.is_file()} == before


def test_a_finished_run_with_another_seed_is_refused_all_the_same(data, root):
    fit_toy(root, toy_spec(data))
    with pytest.raises(ResumeMismatchError, match="seed was 0 and is 1"):
        fit_finished(root, toy_spec(data, seed=1))


def test_a_fresh_run_gives_the_same_again_beside_the_old_one(data, root):
    fit_toy(root, toy_spec(data))
    before = outcome(root)
    fit_toy(root, toy_spec(data), fresh=True)
    assert outcome(root) == before == outcome(root.with_name("run.1"))
    assert len(records_of(root, "driver")) == 1


def test_every_driver_leaves_its_card(data, root):
    spec = toy_spec(data)
    fit_until(root, spec, 1)
    fit_toy(root, spec, workers=2)
    first, second = records_of(root, "driver")
    assert (first["number"], second["number"]) == (0, 1)
    assert (second["host"], second["pid"]) == (socket.gethostname(), os.getpid())
    assert (first["workers"], second["workers"]) == (1, 2)


def test_a_resumed_run_has_the_trials_it_began_with(data, root):
    spec = toy_spec(data, {"lr": {"uniform": [0, 1]}}, search="random", num_trials=3)
    fit_until(root, spec, 1)
    before = records_of(root, "trial")
    fit_toy(root, spec)
    assert records_of(root, "trial") == before
    assert len(before) == 3
    assert len(outcome(root).leaderboard) == 3


def test_trials_start_at_different_shards(data, root):
    fit_toy(root, toy_spec(data, {"lr": LRS}, epochs=1))
    assert [record["start"] for record in records_of(root, "trial")] == [0, 1, 0]
    first = [record["shard"] for record in records_of(root, "visit") if record["step"] == 0]
    assert sorted(first) == [0, 0, 1]


def test_a_thread_that_writes_makes_no_difference(data, folder):
    for threaded in (False, True):
        fit_toy(folder / str(threaded), toy_spec(data), threaded=threaded, workers=3)
    assert outcome(folder / "True") == outcome(folder / "False")


def test_more_trials_by_force_are_added_to_those_that_are_there(data, root):
    fit_until(root, toy_spec(data, {"lr": LRS[:2]}), 1)
    fit_toy(root, toy_spec(data, {"lr": LRS}), force=True)
    assert [record["params"] for record in records_of(root, "trial")] == [{"lr": lr} for lr in LRS]
    (forced,) = records_of(root, "forced")
    assert forced["field"] == "space"
    check(root)


# The ground it runs on


def test_another_version_of_the_framework_is_refused(data, root):
    fit_until(root, toy_spec(data), 1, task=VersionedTask("1"))
    before = (root / layout.JOURNAL).read_bytes()
    with pytest.raises(ResumeMismatchError, match='toy was "1" and is "2"'):
        fit_toy(root, toy_spec(data), task=VersionedTask("2"))
    assert (root / layout.JOURNAL).read_bytes() == before


def test_another_version_by_force_is_recorded(data, root):
    fit_until(root, toy_spec(data), 1, task=VersionedTask("1"))
    fit_toy(root, toy_spec(data), task=VersionedTask("2"), force=True)
    forced = {"type": "forced", "field": "toy", "old": "1", "new": "2"}
    assert records_of(root, "forced") == [forced]
    assert Result.open(root).document.environment["toy"] == "2"
    check(root)


class ChangedTask(ToyTask):
    """The same in other words."""


def test_changed_task_code_is_a_warning(data, root, caplog):
    fit_until(root, toy_spec(data), 1)
    with caplog.at_level(logging.WARNING, "cerebro.run"):
        fit_toy(root, toy_spec(data), task=ChangedTask())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "ChangedTask have changed since the run began" in warning
    assert "not comparable" in warning
    assert Result.open(root).is_finished


def test_a_task_that_changed_after_the_end_is_a_warning_too(data, root, caplog):
    fit_toy(root, toy_spec(data))
    fit_toy(root, toy_spec(data), task=ToyTask(classes=4))
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "ToyTask have changed since the run was finished" in warning
    assert "fresh=True" in warning


BROKEN = {"lr": [0.5, 0.05], "fail": "raise"}


def logged(caplog, level):
    return [record.getMessage() for record in caplog.records if record.levelno == level]


def test_a_run_whose_trials_all_failed_says_so_and_where_to_look(data, root, caplog):
    fit_toy(root, toy_spec(data, BROKEN))
    (error,) = logged(caplog, logging.ERROR)
    first = Result.open(root).trials[0]
    assert error.startswith("all 2 trials failed, the first (t0000) with: ")
    assert first.error in error
    assert "on purpose" in first.traceback
    assert "result.trials[0].traceback" in error
    assert f"`cerebro results {root} --trial t0000`" in error


def test_one_good_trial_is_enough_to_say_nothing(data, root, caplog):
    fit_toy(root, toy_spec(data, {"lr": 0.5, "fail": ["raise", None]}))
    assert logged(caplog, logging.ERROR) == []


@pytest.mark.parametrize("task", [ChangedTask(), ToyTask(classes=4)], ids=["code", "arguments"])
def test_after_nothing_but_failures_another_task_begins_anew(data, root, caplog, task):
    spec = toy_spec(data, BROKEN)
    fit_toy(root, spec)
    caplog.clear()
    before = contents(root)
    fit_toy(root, spec, task=task)
    (warning,) = logged(caplog, logging.WARNING)
    assert f"it begins anew, and what was there is in {root}.1." in warning
    assert contents(root.with_name("run.1")) == before
    assert len(records_of(root, "driver")) == 1
    assert Result.open(root).is_finished
    check(root)


def test_the_same_task_that_failed_does_not_but_says_how(data, root, caplog):
    spec = toy_spec(data, BROKEN)
    fit_toy(root, spec)
    caplog.clear()
    assert fit_finished(root, spec) is None
    (error,) = [record.getMessage() for record in caplog.records]
    assert "all 2 trials failed" in error
    assert "fresh=True" in error
    assert not root.with_name("run.1").exists()


def test_what_some_trials_have_learnt_is_not_moved_aside(data, root, caplog):
    spec = toy_spec(data, {"lr": 0.5, "fail": ["raise", None]})
    fit_toy(root, spec)
    fit_toy(root, spec, task=ChangedTask())
    (warning,) = [record.getMessage() for record in caplog.records]
    assert "fresh=True" in warning
    assert not root.with_name("run.1").exists()


def test_a_task_of_which_nobody_can_tell_begins_nothing_anew(data, root, monkeypatch):
    spec = toy_spec(data, BROKEN)
    fit_toy(root, spec)
    monkeypatch.setattr("cerebro.run.fit.describe_task", lambda task: ("main:Task", ""))
    assert fit_finished(root, spec) is None


def test_a_task_that_is_named_counts_by_what_is_in_its_file_now(data, folder, root, caplog):
    path = folder / "task.py"
    code = "from cerebro.testing.toy import ToyTask\n\n\nclass Own(ToyTask):\n    pass\n"
    path.write_text(code)
    spec, name = toy_spec(data, BROKEN), f"{path}:Own"
    fit_toy(root, spec, task=name)
    caplog.clear()
    fit_toy(root, spec, task=name)
    assert logged(caplog, logging.WARNING) == []
    path.write_text(f"{code}\n\n# Repaired.\n")
    fit_toy(root, spec, task=name)
    assert "it begins anew" in logged(caplog, logging.WARNING)[0]


def test_a_repaired_task_that_cannot_begin_leaves_the_failures_where_they_were(data, folder, root):
    spec = toy_spec(data, BROKEN)
    fit_toy(root, spec)
    before = contents(root)

    class Refused(InlineBackend):
        def start(self, setup, workers):
            raise UsageError("no")

    with pytest.raises(UsageError, match="no"):
        fit_toy(root, spec, task=ChangedTask(), backend=Refused())
    assert contents(root) == before
    assert [path.name for path in folder.iterdir()] == ["run"]


def test_the_same_task_is_no_warning(data, root, caplog):
    fit_until(root, toy_spec(data), 1)
    fit_toy(root, toy_spec(data))
    assert caplog.records == []


def test_repairs_are_told(data, root, caplog):
    fit_until(root, toy_spec(data), 1)
    path = root / layout.JOURNAL
    path.write_bytes(path.read_bytes()[:-3])
    fit_toy(root, toy_spec(data))
    assert [record.getMessage() for record in caplog.records] == [
        "the last journal record was cut short and has been dropped"
    ]


# Batch sizes


@pytest.mark.parametrize("size", [0, -1, 1.5, True, "many", None, [8]])
def test_a_batch_size_of_the_space_must_be_a_count(data, folder, root, size):
    space = {"batch_size": {"choice": [8, size]}, "lr": 0.1}
    with pytest.raises(UsageError, match="an integer of at least 1, but the space gives") as caught:
        fit_toy(root, toy_spec(data, space, batch_size=None), backend=Untouchable())
    assert repr(size) in str(caught.value)
    assert list(folder.iterdir()) == []


def test_every_trial_gets_its_own_batch_size(data, root):
    notes = Notes()
    space = {"batch_size": [8, 36], "lr": 0.1}
    fit_toy(root, toy_spec(data, space, batch_size=None, epochs=1), trackers=[notes])
    visits = [visit for visit in notes.of(records.VisitFinished) if visit.phase == "train"]
    steps = {(visit.trials[0], len(visit.members[0].losses)) for visit in visits}
    assert {visit.rows for visit in visits} == {36}
    assert steps == {(0, 5), (1, 1)}


# Trackers and the summary


def test_trackers_are_told_the_whole_run_in_order(data, root):
    notes = Notes()
    fit_toy(root, toy_spec(data), trackers=[notes])
    first, last = notes.records[0], notes.records[-1]
    assert isinstance(first, records.RunStarted)
    assert (first.trials, first.train_shards, first.resumed) == (2, 2, False)
    assert isinstance(last, records.RunFinished)
    assert [added.params for added in notes.of(records.TrialAdded)] == [{"lr": 0.5}, {"lr": 0.05}]
    assert len(notes.of(records.VisitFinished)) == len(notes.of(records.VisitStarted)) == 12
    assert not any(record.replayed for record in notes.of(records.EpochFinished))


def test_trackers_are_told_of_as_many_trials_as_the_budget_allows(data, root):
    notes = Notes()
    fit_toy(root, toy_spec(data, budget={"trials": 1}), trackers=[notes])
    assert notes.records[0].trials == 1


def test_trackers_of_a_resumed_run_are_told_what_came_before(data, root):
    spec = toy_spec(data, {"fail": ["raise", None], "lr": 0.5})
    fit_until(root, spec, 1, "epoch", trial=1)
    notes = Notes()
    fit_toy(root, spec, trackers=[notes])
    assert notes.records[0].resumed
    epochs = [(e.trial, e.epoch, e.replayed) for e in notes.of(records.EpochFinished)]
    assert epochs == [(1, 0, True), (1, 1, False)]
    ends = [(e.trial, e.status, e.replayed) for e in notes.of(records.TrialFinished)]
    assert ends == [(0, TrialStatus.FAILED, True), (1, TrialStatus.FINISHED, False)]
    assert "on purpose" in notes.of(records.TrialFinished)[0].error


def test_the_summary_is_in_its_file_and_in_the_journal(data, root):
    fit_toy(root, toy_spec(data, checkpoint=Checkpointing.OFF))
    summary = json.loads((root / layout.SUMMARY).read_text())
    assert records_of(root, "done") == [{"type": "done", "summary": summary}]
    assert 0 < summary["efficiency"] <= 1
    assert Result.open(root).summary == summary
