from __future__ import annotations

import errno
import shutil
import signal
import sys
import threading
from dataclasses import replace

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import StateRef
from cerebro.errors import (
    CheckpointCorruptError,
    DiskFullError,
    ShardCorruptError,
    UsageError,
)
from cerebro.results import Result
from cerebro.run.fit import Settings, fit
from cerebro.run.spec import Checkpointing
from cerebro.search import make_sampler, parse_space
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.disk import Disk
from cerebro.testing.faults import CountOnly, Fail, FaultyDisk, flip_bit
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.types import TrialStatus
from tests.experiments import fit_toy, outcome, toy_spec
from tests.unit.run.frameworks import OnDeviceTask
from tests.unit.run.runs import fit_until, records_of


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """What a run makes that nothing happens to."""
    root = tmp_path_factory.mktemp("whole") / "run"
    fit_toy(root, toy_spec(data))
    return outcome(root)


class WatchedBackend(InlineBackend):
    """Remembers where visits took their state from."""

    def __init__(self):
        super().__init__()
        self.sources = []

    def submit(self, worker, call, source, **options):
        self.sources.append(type(source))
        super().submit(worker, call, source, **options)


class LateSaves(InlineBackend):
    """A disk so slow that a checkpoint is written only when there is nothing else to do."""

    def __init__(self):
        super().__init__()
        self._is_idle = threading.Event()
        self.trained = 0
        #: Visits trained when the first checkpoint was written.
        self.ahead = None

    def submit(self, worker, call, source, **options):
        self.trained += call.is_training
        super().submit(worker, call, source, **options)

    def events(self):
        if self._events.empty() and not self._queue:
            self._is_idle.set()
        return super().events()

    def save(self, state, request):
        if self.ahead is None:
            self._is_idle.wait()
            self.ahead = self.trained
        return super().save(state, request)


# Metrics and params


def test_a_metric_that_does_not_exist_lists_those_that_do(data, folder, root):
    with pytest.raises(UsageError, match=r"'val_f1'\. Known: train_loss, val_loss, val_accuracy"):
        fit_toy(root, toy_spec(data, metric="val_f1"))
    assert list(folder.iterdir()) == []


def test_without_validation_there_is_the_training_loss_alone(data, root):
    with pytest.raises(UsageError, match=r"got 'val_loss'\. Known: train_loss\.$"):
        fit_toy(root, toy_spec(data, val_shards=0))
    fit_toy(root, toy_spec(data, val_shards=0, metric="train_loss"))
    assert set(Result.open(root).best.metrics) == {"train_loss"}


@pytest.mark.parametrize("fails", [["raise", None], [None, "raise"]])
def test_a_first_trial_that_fails_does_not_hide_a_wrong_metric(data, folder, root, fails):
    spec = toy_spec(data, {"fail": fails, "lr": 0.1}, metric="val_f1")
    with pytest.raises(UsageError, match="'val_f1'"):
        fit_toy(root, spec)
    assert list(folder.iterdir()) == []


def test_a_metric_that_is_forced_on_a_run_must_exist_too(data, root, spec):
    fit_until(root, spec, 3)
    before = records_of(root, "visit")
    with pytest.raises(UsageError, match="'val_f1'"):
        fit_toy(root, toy_spec(data, metric="val_f1"), force=True)
    assert records_of(root, "visit") == before


def test_a_param_that_the_task_lacks_refuses_the_run(data, folder, root):
    with pytest.raises(UsageError, match=r"asks for params\['lr'\], but the trial has: rate"):
        fit_toy(root, toy_spec(data, {"rate": [0.1, 0.2]}))
    assert list(folder.iterdir()) == []


# Done and durable


@pytest.mark.parametrize(("mode", "ahead"), [("visit", 4 + 1), ("epoch", 2 * 4 + 4)])
def test_training_runs_ahead_of_the_disk_by_one_visit_a_trial_and_those_in_flight(
    data, root, mode, ahead
):
    space = {"lr": [0.1, 0.2, 0.3, 0.4]}
    spec = toy_spec(data, space, epochs=4, val_shards=0, metric="train_loss")
    spec = replace(spec, checkpoint=Checkpointing(mode))
    backend = LateSaves()
    fit_toy(root, spec, backend=backend, threaded=True)
    assert backend.ahead == ahead
    check(root)


def test_time_that_a_worker_stands_idle_for_a_checkpoint_is_told(data, root):
    fit_toy(root, toy_spec(data, {"lr": [0.1]}), backend=LateSaves(), threaded=True)
    summary = Result.open(root).summary
    assert summary["checkpoint_s"] > 0
    assert summary["checkpoint_s"] + summary["wait_s"] < summary["makespan_s"]


# States in memory


def test_with_memory_enough_states_never_come_from_the_disk(root, spec, whole):
    backend = WatchedBackend()
    fit_toy(root, spec, backend=backend)
    assert set(backend.sources) == {type(None), StateRef}
    assert outcome(root) == whole


def test_states_beyond_the_limit_are_reloaded_from_their_checkpoints(root, spec, whole):
    backend = WatchedBackend()
    fit_toy(root, spec, backend=backend, memory_bytes=0)
    assert CheckpointRef in backend.sources
    assert outcome(root) == whole
    check(root)


def test_without_checkpoints_the_limit_takes_nothing_away(data, root):
    backend = WatchedBackend()
    spec = toy_spec(data, checkpoint=Checkpointing.OFF)
    fit_toy(root, spec, backend=backend, memory_bytes=0)
    assert CheckpointRef not in backend.sources


def test_all_states_are_given_back_at_the_end(root, spec):
    held = set()

    class CountingBackend(InlineBackend):
        def submit(self, worker, call, source, *, consume):
            super().submit(worker, call, source, consume=consume)
            if consume:
                held.remove(source.key)

        def events(self):
            found = super().events()
            held.update(e.state.key for e in found if getattr(e, "state", None) is not None)
            return found

        def release(self, state):
            super().release(state)
            held.remove(state.key)

    fit_toy(root, spec, backend=CountingBackend(), workers=2)
    assert held == set()


def test_a_visit_gets_its_state_without_a_copy_once_that_is_durable(root, spec, whole):
    handed_over = []

    class WatchingBackend(InlineBackend):
        def submit(self, worker, call, source, *, consume):
            if isinstance(source, StateRef):
                handed_over.append((consume, call.is_training))
            super().submit(worker, call, source, consume=consume)

    fit_toy(root, spec, backend=WatchingBackend())
    assert (True, True) in handed_over
    assert (True, False) not in handed_over, "an evaluation leaves the state to others"
    assert outcome(root) == whole


def test_a_state_that_is_not_saved_is_never_given_away(data, root):
    class WatchingBackend(InlineBackend):
        def submit(self, worker, call, source, *, consume):
            assert not consume
            super().submit(worker, call, source)

    fit_toy(root, toy_spec(data, checkpoint=Checkpointing.OFF), backend=WatchingBackend())


def test_a_visit_that_fails_after_a_hand_over_is_tried_again_from_the_checkpoint(
    data, folder, root
):
    fault = {"kind": "raise", "epoch": 1, "step": 0, "attempts": 1}
    spec = toy_spec(data, {"lr": [0.1], "fail": [fault]})
    backend = WatchedBackend()
    fit_toy(root, spec, backend=backend)
    assert CheckpointRef in backend.sources
    fit_toy(folder / "sound", toy_spec(data, {"lr": [0.1]}))
    sound = Result.open(folder / "sound").trials[0]
    assert Result.open(root).trials[0].metrics == sound.metrics


# When state becomes durable


@pytest.mark.parametrize(
    ("mode", "saved"),
    [
        (Checkpointing.VISIT, [1, 2, 3, 4]),
        (Checkpointing.EPOCH, [None, 2, None, 4]),
        (Checkpointing.OFF, [None, None, None, None]),
    ],
)
@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_checkpoints_are_written_as_often_as_asked(data, root, whole, mode, saved, threaded):
    fit_toy(root, toy_spec(data, checkpoint=mode), threaded=threaded)
    visits = [record.get("checkpoint") for record in records_of(root, "visit", 0)]
    assert [ref and ref["visits"] for ref in visits] == saved
    check(root)
    for row, expected in zip(outcome(root).leaderboard, whole.leaderboard, strict=True):
        assert row == expected


@pytest.mark.parametrize(("mode", "lost"), [(Checkpointing.EPOCH, 1), (Checkpointing.OFF, 3)])
def test_what_was_not_saved_is_trained_again(data, folder, root, mode, lost):
    log = folder / "visits"
    spec = toy_spec(data, {"lr": [0.5]}, checkpoint=mode)
    task = ToyTask(log=str(log))

    class Crashing(InlineBackend):
        def submit(self, worker, call, source, **options):
            if (call.is_training, call.visits) == (True, 4):
                raise ZeroDivisionError
            super().submit(worker, call, source, **options)

    with pytest.raises(ZeroDivisionError):
        fit_toy(root, spec, task=task, backend=Crashing())
    assert len(log.read_text().splitlines()) == 3
    fit_toy(root, spec, task=task)
    assert len(log.read_text().splitlines()) == 4 + lost


def test_a_crash_between_training_and_evaluation_repeats_neither(data, folder, root):
    log = folder / "visits"
    task = ToyTask(log=str(log))
    spec = toy_spec(data, {"lr": [0.5]})
    fit_until(root, spec, 2, task=task)
    assert records_of(root, "epoch") == []
    fit_toy(root, spec, task=task)
    visits = [line.rpartition(" ")[0] for line in log.read_text().splitlines()]
    assert visits == ["0 0 0 0", "0 0 1 0", "0 1 0 0", "0 1 1 0"]
    assert len(records_of(root, "epoch")) == 2


def test_a_crash_between_a_trials_last_epoch_and_its_end_trains_nothing(data, folder, root):
    log = folder / "visits"
    spec = toy_spec(data, {"lr": [0.5]})
    fit_until(root, spec, 2, "epoch", task=ToyTask(log=str(log)))
    # The two records are written apart: cut the later one off where it came along.
    lines = (root / layout.JOURNAL).read_bytes().splitlines(keepends=True)
    ends = [line for line in lines if b'"trial_end"' not in line]
    (root / layout.JOURNAL).write_bytes(b"".join(ends))
    fit_toy(root, spec, task=ToyTask(log=str(log)))
    assert len(log.read_text().splitlines()) == 4
    assert Result.open(root).trials[0].status is TrialStatus.FINISHED


# Disks


class SmallStore(DirectoryStore):
    """A store on a disk with little space left."""

    def free_bytes(self):
        return 1000


def fit_small(root, spec):
    fit(
        spec,
        Settings(task=ToyTask(), workers=1, threaded=False),
        store=SmallStore(root),
        backend=InlineBackend(),
        sampler=make_sampler("grid", parse_space(spec.space)),
        trackers=(),
    )


def test_a_run_whose_checkpoints_cannot_fit_is_stopped_at_its_first_state(data, root, spec, whole):
    with pytest.raises(DiskFullError, match="but 1000 are free in file://") as caught:
        fit_small(root, spec)
    assert caught.value.exit_code == 75
    assert "checkpoint='off'" in str(caught.value)
    assert records_of(root, "visit") == []
    fit_toy(root, spec)
    assert outcome(root) == whole


def test_without_checkpoints_no_space_is_asked_for(data, root):
    fit_small(root, toy_spec(data, checkpoint=Checkpointing.OFF))
    assert Result.open(root).is_finished


@pytest.mark.parametrize("threaded", [False, True], ids=["inline", "threaded"])
def test_a_disk_that_fills_up_ends_the_run_and_the_next_resumes_it(root, spec, whole, threaded):
    disk = FaultyDisk(Disk(), CountOnly())
    fit_toy(root, spec, disk=disk)
    shutil.rmtree(root)
    half = len(disk.operations) // 2
    full = FaultyDisk(Disk(), Fail(half, errno.ENOSPC, always=True, only=frozenset({"append"})))
    with pytest.raises(DiskFullError, match="bytes are needed and"):
        fit_toy(root, spec, disk=full, threaded=threaded)
    assert 0 < len(records_of(root, "visit")) < 8
    fit_toy(root, spec)
    assert outcome(root) == whole
    check(root)


def test_a_damaged_shard_ends_the_run(data, folder, root):
    shutil.copytree(data, folder / "data")
    spec = toy_spec(folder / "data")
    fit_until(root, spec, 1)
    for path in (folder / "data").glob("train-*.arrow"):
        path.write_bytes(flip_bit(path.read_bytes(), 12_345))
    with pytest.raises(ShardCorruptError, match="SHA-256") as caught:
        fit_toy(root, spec)
    assert caught.value.exit_code == 1
    assert len(records_of(root, "trial_end")) == 0


def test_a_checkpoint_damaged_under_the_run_ends_it_and_the_next_computes_it_again(
    root, spec, whole
):
    class DamagingBackend(InlineBackend):
        def submit(self, worker, call, source, **options):
            if isinstance(source, CheckpointRef) and call.is_training:
                path = root / source.data_path
                path.write_bytes(flip_bit(path.read_bytes(), 4711))
            super().submit(worker, call, source, **options)

    with pytest.raises(CheckpointCorruptError, match="the same command computes it anew"):
        fit_toy(root, spec, backend=DamagingBackend(), memory_bytes=0)
    fit_toy(root, spec)
    assert outcome(root) == whole
    check(root)


# The rest of the process


def test_the_interpreter_is_left_as_it_was(data, root, spec):
    before = sys.getswitchinterval(), signal.getsignal(signal.SIGINT)
    fit_toy(root, spec)
    with pytest.raises(UsageError):
        fit_toy(root.with_name("other"), toy_spec(data, metric="val_f1"))
    assert (sys.getswitchinterval(), signal.getsignal(signal.SIGINT)) == before


def test_workers_with_devices_keep_to_their_shards(data, folder):
    """On the CPU all share one copy of the data; a device holds its own."""
    spec = toy_spec(data, {"lr": [0.1 * n for n in range(1, 9)]}, epochs=1)
    at_home = {}
    for name, task in (("device", OnDeviceTask()), ("cpu", ToyTask())):
        fit_toy(folder / name, spec, task=task, workers=2)
        visits = records_of(folder / name, "visit")
        at_home[name] = sum(visit["shard"] == visit["worker"] for visit in visits)
    assert at_home["cpu"] < 12 < at_home["device"] <= 16


def test_fewer_epochs_by_force_end_what_is_past_them(data, root):
    fit_until(root, toy_spec(data, epochs=5), 5)
    fit_toy(root, toy_spec(data, epochs=1), force=True)
    result = Result.open(root)
    assert result.is_finished
    assert {trial.status for trial in result.trials} == {TrialStatus.FINISHED}
    assert len(result.history(0)) == 2
