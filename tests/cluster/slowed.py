"""A task whose visits take four times as long on one worker; importable by workers.

They sleep: so they take as long on a busy machine, where a share of a processor would not be one.
"""

from __future__ import annotations

from typing import ClassVar

from cerebro.task import Task
from cerebro.testing.toy import ToyFramework, ToyTask

SLOW = 0
_TIMES = 4


class SlowedTask(ToyTask):
    """A toy task for workers that differ."""

    framework: ClassVar[str] = "tests.cluster.slowed:SlowedFramework"


class SlowedFramework(ToyFramework):
    """Trains a `SlowedTask`; one of these is slow."""

    def __init__(
        self, task: Task, *, device: str = "auto", threads: int = 1, worker: int = 0
    ) -> None:
        super().__init__(task, device=device, threads=threads, worker=worker)
        if worker == SLOW:
            self.task.visit_s *= _TIMES
