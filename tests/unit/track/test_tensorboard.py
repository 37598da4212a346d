from __future__ import annotations

import struct
from pathlib import Path

from cerebro.testing.tracker_contract import STEPS, small_run, started, visit
from cerebro.track.records import EpochFinished, Record, TrialAdded, TrialFinished
from cerebro.track.tensorboard import TensorBoardTracker
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
