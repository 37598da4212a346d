"""Tasks that start processes of their own, as data loaders do."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import ClassVar

from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.visit import State


class ForkingTask(ToyTask):
    """Its first visit forks a process that does nothing, and writes its number to a file."""

    framework: ClassVar[str] = "tests.unit.backend.forking:ForkingFramework"

    def __init__(self, pid_file: Path) -> None:
        super().__init__()
        self.pid_file = pid_file


class ForkingFramework(ToyFramework):
    def train(self, *args):
        assert isinstance(self.task, ForkingTask)
        if not self.task.pid_file.exists():
            pid = os.fork()
            if pid == 0:
                time.sleep(1000)
            written = self.task.pid_file.with_suffix(".new")
            written.write_text(str(pid))
            written.rename(self.task.pid_file)
        return super().train(*args)


class UnreadableTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.backend.forking:UnreadableFramework"


class UnreadableFramework(ToyFramework):
    """Its answers hold an object that cannot be read anywhere else."""

    def train(self, *args):
        state, report = super().train(*args)
        return State(state.buffer, {**state.meta, "odd": Unreadable()}), report


class Unreadable:
    def __reduce__(self):
        return int, ("not a number",)
