"""history.npz: what is in it, and when it is there."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from cerebro.testing.tracker_contract import TrackerContract
from cerebro.track.npz import NpzTracker
from cerebro.track.records import EpochFinished, TrialAdded
from cerebro.track.tracker import Tracker


def make_tracker(directory: Path) -> NpzTracker:
    return NpzTracker(directory, ranks=4, rate_at=lambda params, repeat, epoch: 0.1 / (epoch + 1))


def epoch(number: int, trial: int = 0, **metrics: float) -> EpochFinished:
    return EpochFinished(trial=trial, epoch=number, metrics=metrics, seconds=1.0 + number)


def read(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as found:
        return dict(found)


class TestNpzTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return make_tracker(directory)


def test_it_is_written_anew_at_each_epoch_under_the_names_of_keras(tmp_path):
    tracker = make_tracker(tmp_path)
    tracker.record(TrialAdded(trial=0, params={}))
    tracker.record(epoch(0, train_loss=2.0, val_loss=1.0, val_accuracy=0.5))
    assert read(tmp_path / "history.npz")["val_acc"].tolist() == [0.5]
    tracker.record(epoch(1, train_loss=1.0, val_loss=0.5, val_accuracy=0.75, val_top=0.9))
    found = read(tmp_path / "history.npz")
    assert found["loss"].tolist() == [2.0, 1.0]
    assert found["val_loss"].tolist() == [1.0, 0.5]
    assert found["val_acc"].tolist() == [0.5, 0.75]
    assert found["lr"].tolist() == [0.1, 0.05]
    assert found["seconds"].tolist() == [1.0, 2.0]
    assert found["n_ranks"] == 4
    assert np.isnan(found["acc"]).all()
    np.testing.assert_equal(found["val_top"], [np.nan, 0.9])


def test_a_single_trial_has_it_at_the_top_as_well(tmp_path):
    tracker = make_tracker(tmp_path)
    tracker.record(TrialAdded(trial=0, params={}))
    tracker.record(epoch(0, val_loss=1.0))
    assert (tmp_path / "history.npz").exists()
    tracker.record(TrialAdded(trial=1, params={}))
    tracker.record(epoch(0, trial=1, val_loss=2.0))
    assert not (tmp_path / "history.npz").exists()
    assert read(tmp_path / "trials/t0001/history.npz")["val_loss"].tolist() == [2.0]


@pytest.mark.parametrize("trials", [65, 200])
def test_many_trials_are_held_back_but_not_lost(trials, tmp_path):
    tracker = make_tracker(tmp_path)
    for trial in range(trials):
        tracker.record(TrialAdded(trial=trial, params={}))
    for trial in range(trials):
        tracker.record(epoch(0, trial=trial, val_loss=float(trial)))
    tracker.close()
    last = read(tmp_path / f"trials/t{trials - 1:04d}/history.npz")
    assert last["val_loss"].tolist() == [trials - 1.0]
