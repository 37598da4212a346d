"""Runs of a thousand trials: few descriptors, every file there, nothing lost."""

from __future__ import annotations

import csv
import io
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.testing.tracker_contract import Shape, small_run
from cerebro.track.files import FileTracker
from cerebro.track.plain import LineTracker
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.track.tracker import QUEUE_RECORDS, FanOut

SHAPE = Shape(trials=1024, stack=256, epochs=3, shards=2, steps=59)


@pytest.fixture
def few_descriptors() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    used = max(map(int, os.listdir("/dev/fd")))
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + 20, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("few_descriptors")
def test_a_thousand_trials_are_tracked_whole_with_few_descriptors(tmp_path: Path) -> None:
    lines = io.StringIO()
    fan = FanOut([FileTracker(tmp_path), TensorBoardTracker(tmp_path), LineTracker(lines)])
    for record in small_run(shape=SHAPE):
        fan.record(record)
    fan.close(timeout=50.0)
    assert fan.problems == []
    progress = sorted(tmp_path.glob("trials/*/progress.csv"))
    assert len(progress) == len(list(tmp_path.glob("tensorboard/*/events*"))) == 1024
    with progress[-1].open(newline="") as file:
        assert [row["epoch"] for row in csv.DictReader(file)] == ["0", "1", "2"]
    assert len((tmp_path / "leaderboard.csv").read_text().splitlines()) == 1 + 1024
    assert lines.getvalue().count("\n") < 100


def test_the_records_of_a_stacked_run_fit_the_queue() -> None:
    assert sum(1 for _ in small_run(shape=SHAPE)) < QUEUE_RECORDS
