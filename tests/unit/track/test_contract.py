from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console

from cerebro.testing.tracker_contract import TrackerContract
from cerebro.track.console import TableTracker
from cerebro.track.files import FileTracker
from cerebro.track.plain import LineTracker
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.track.tracker import Tracker


class TestFileTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return FileTracker(directory)


class TestTensorBoardTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return TensorBoardTracker(directory)


class TestLineTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return LineTracker(io.StringIO())


class TestTableTracker(TrackerContract):
    def make(self, directory: Path) -> Tracker:
        return TableTracker(Console(file=io.StringIO(), force_terminal=True, width=100))
