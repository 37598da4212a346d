from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro.testing.tracker_contract import (
    STEPS,
    Shape,
    resumed_run,
    small_run,
    started,
    visit,
)
from cerebro.track.records import (
    EpochFinished,
    MemberVisit,
    Record,
    TrialAdded,
    TrialFinished,
    VisitFinished,
)
from cerebro.track.tensorboard import CURVE_POINTS, VISIT_POINTS, TensorBoardTracker, kept_steps
from cerebro.types import TrialStatus


def feed(directory: Path, records: list[Record]) -> None:
    tracker = TensorBoardTracker(directory)
    for record in records:
        tracker.record(record)
    tracker.close()


def bodies(directory: Path, trial: str = "t0000") -> list[bytes]:
    """Event messages of a trial, in the order TensorBoard reads the files."""
    out = []
    for path in sorted((directory / "tensorboard" / trial).iterdir()):
        data = path.read_bytes()
        while data:
            (size,) = struct.unpack("<Q", data[:8])
            out.append(data[12 : 12 + size])
            data = data[16 + size :]
    return out


def count(directory: Path, tag: bytes, trial: str = "t0000") -> int:
    return sum(tag in body for body in bodies(directory, trial))


def test_every_step_of_every_train_visit_is_there(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    assert count(tmp_path, b"train/loss") == 2 * 2 * STEPS


def test_every_epoch_metric_is_there(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    assert count(tmp_path, b"epoch/val_accuracy") == 2
    assert count(tmp_path, b"epoch/train_loss") == 2


def test_every_trial_has_its_params_and_its_end_once(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    for trial in ("t0000", "t0001", "t0002"):
        assert count(tmp_path, b"_hparams_/session_start_info", trial) == 1
        assert count(tmp_path, b"_hparams_/session_end_info", trial) == 1


def test_records_are_on_disk_before_close(tmp_path: Path) -> None:
    tracker = TensorBoardTracker(tmp_path)
    tracker.record(TrialAdded(trial=0, params={"lr": 1.0}))
    tracker.record(visit(0, 0, 0))
    assert count(tmp_path, b"train/loss") == STEPS


def test_a_file_begins_with_its_version(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    assert b"brain.Event:2" in bodies(tmp_path)[0]


def test_a_resumed_run_adds_no_second_copy_of_replayed_epochs(tmp_path: Path) -> None:
    added = TrialAdded(trial=0, params={})
    ended = EpochFinished(trial=0, epoch=0, metrics={"m": 1.0}, seconds=1.0)
    feed(tmp_path, [started(), added, ended])
    again = EpochFinished(trial=0, epoch=0, metrics={"m": 1.0}, seconds=1.0, replayed=True)
    over = TrialFinished(trial=0, status=TrialStatus.FINISHED, replayed=True)
    feed(tmp_path, [started(resumed=True), added, again, over])
    assert count(tmp_path, b"epoch/m") == 1
    assert len(list((tmp_path / "tensorboard" / "t0000").iterdir())) == 1


def test_a_resumed_trial_tells_readers_from_which_step_it_carries_on(tmp_path: Path) -> None:
    feed(tmp_path, [started(), visit(0, 0, 0), visit(0, 0, 1)])
    feed(tmp_path, [started(resumed=True), visit(0, 0, 1), visit(0, 1, 0)])
    restart = b"\x10" + bytes([STEPS]) + b"\x3a\x02\x08\x01"
    assert [body.endswith(restart) for body in bodies(tmp_path)].count(True) == 1


def test_a_trial_named_by_no_record_still_gets_a_directory_of_its_own(tmp_path: Path) -> None:
    feed(tmp_path, [visit(7, 0, 0)])
    assert count(tmp_path, b"train/loss", "t0007") == STEPS


def curve(directory: Path, trial: str) -> list[tuple[int, float]]:
    """Step and value of every training loss, read from the constant layout of these records."""
    points = []
    for body in bodies(directory, trial):
        if b"train/loss" in body:
            value = body.index(b"train/loss") + len(b"train/loss") + 1
            (loss,) = struct.unpack("<f", body[value : value + 4])
            step = sum((byte & 0x7F) << 7 * i for i, byte in enumerate(body[value + 5 :]))
            points.append((step, loss))
    return points


def stacked(*losses: tuple[float, ...], first_step: int = 0) -> VisitFinished:
    members = tuple(MemberVisit(losses=each, first_step=first_step) for each in losses)
    return replace(visit(tuple(range(len(losses))), 0, 0), members=members)


def test_each_trial_of_a_stack_gets_its_own_losses(tmp_path: Path) -> None:
    feed(tmp_path, [stacked((1.0, 2.0), (3.0, 4.0), (), (5.0,), (6.0, 7.0), first_step=8)])
    assert curve(tmp_path, "t0000") == [(8, 1.0), (9, 2.0)]
    assert curve(tmp_path, "t0001") == [(8, 3.0), (9, 4.0)]
    assert curve(tmp_path, "t0003") == [(8, 5.0)]
    assert curve(tmp_path, "t0004") == [(8, 6.0), (9, 7.0)]
    assert not (tmp_path / "tensorboard" / "t0002").exists()


def test_a_run_in_stacks_has_the_same_curves(tmp_path: Path) -> None:
    feed(tmp_path / "alone", list(small_run()))
    feed(tmp_path / "stacked", list(small_run(shape=Shape(stack=3))))
    for trial in ("t0000", "t0002"):
        assert curve(tmp_path / "alone", trial) == curve(tmp_path / "stacked", trial)
        assert count(tmp_path / "stacked", b"epoch/val_accuracy", trial) == 2


@given(st.integers(1, 3000), st.integers(1, 100))
def test_kept_steps_are_evenly_spaced_and_end_with_the_last(steps: int, limit: int) -> None:
    kept = kept_steps(steps, limit).tolist()
    gaps = [after - here for here, after in zip([-1, *kept], kept, strict=False)]
    assert len(kept) == min(steps, limit)
    assert kept[-1] == steps - 1
    assert min(gaps) >= 1
    assert max(gaps) - min(gaps) <= 1


@pytest.mark.parametrize(
    ("trials", "epochs", "points"),
    [(64, 1, 59), (65, 1, VISIT_POINTS), (65, 100, 5), (65, 10_000, 1)],
)
def test_losses_are_thinned_where_there_are_many_trials(
    tmp_path: Path, trials: int, epochs: int, points: int
) -> None:
    shape = Shape(trials=trials, stack=trials, epochs=epochs, steps=59)
    done = visit(tuple(range(trials)), 0, 1, shape=shape)
    feed(tmp_path, [started(shape=shape), done])
    kept = curve(tmp_path, "t0007")
    assert len(kept) == points == min(59, len(kept_steps(59, points)))
    assert kept[-1] == (2 * 59 - 1, done.members[7].losses[-1])
    assert points * epochs * shape.shards <= CURVE_POINTS or points in (1, 59)


def test_records_of_many_trials_are_written_about_once_a_second(tmp_path: Path) -> None:
    now = 0.0
    shape = Shape(trials=100, stack=100)
    tracker = TensorBoardTracker(tmp_path, clock=lambda: now)
    tracker.record(started(shape=shape))
    stack = tuple(range(100))
    for step in (0, 1):
        tracker.record(visit(stack, 0, step, shape=shape))
    assert len(curve(tmp_path, "t0099")) == STEPS
    now = 60.0
    tracker.record(EpochFinished(trial=3, epoch=0, metrics={"m": 1.0}, seconds=1.0))
    assert len(curve(tmp_path, "t0099")) == 2 * STEPS
    assert count(tmp_path, b"epoch/m", "t0003") == 1
    tracker.record(visit(stack, 1, 0, shape=shape))
    tracker.flush()
    assert len(curve(tmp_path, "t0000")) == 3 * STEPS


def test_a_resumed_stack_restarts_each_of_its_trials_once(tmp_path: Path) -> None:
    shape = Shape(stack=3)
    feed(tmp_path, list(resumed_run(shape=shape)))
    restart = b"\x10" + bytes([2 * STEPS]) + b"\x3a\x02\x08\x01"
    for trial in ("t0000", "t0001", "t0002"):
        found = bodies(tmp_path, trial)
        assert [body.endswith(restart) for body in found].count(True) == 1


def test_epochs_of_many_trials_go_to_their_own_files(tmp_path: Path) -> None:
    shape = Shape(trials=70, stack=35, epochs=1)
    feed(tmp_path, list(small_run(shape=shape)))
    for trial in ("t0000", "t0034", "t0035", "t0069"):
        assert count(tmp_path, b"epoch/val_accuracy", trial) == 1
        assert count(tmp_path, b"_hparams_/session_end_info", trial) == 1
