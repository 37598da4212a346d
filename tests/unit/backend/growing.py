"""Frameworks for tests of the local backend; workers import them from here."""

from __future__ import annotations

import os
from typing import ClassVar

from cerebro.task import Task
from cerebro.testing.toy import ToyFramework, ToyTask
from cerebro.train.visit import MemberReport, State, VisitReport


def content(size: int) -> bytes:
    return (b"%d " % size * size)[:size]


class Growing:
    """Its states grow from visit to visit; it asks for a small buffer first."""

    device = "cpu"

    def __init__(self, task, **settings):
        self.task = task

    def versions(self):
        return {"growing": "1"}

    def train(self, call, shard, state, allocate):
        if state is not None:
            assert bytes(state.buffer) == content(len(state.buffer))
        allocate(10)
        size = 1000 * 4**call.visits
        buffer = allocate(size)
        buffer[:] = content(size)
        return State(buffer, {}), VisitReport(rows=1, members=(MemberReport(sums={}),))

    def close(self):
        pass


class GrowingTask(Task):
    framework: ClassVar[str] = "tests.unit.backend.growing:Growing"


class Talking(ToyFramework):
    def train(self, *args):
        print("training")
        return super().train(*args)


class TalkingTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.backend.growing:Talking"


class Environment(ToyFramework):
    def train(self, *args):
        state, report = super().train(*args)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "PYTHONHASHSEED")
        found = {name: os.environ.get(name) for name in names}
        keras = os.environ.get("KERAS_BACKEND")
        return State(state.buffer, {"environment": found, "keras": keras}), report


class EnvironmentTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.backend.growing:Environment"


class Sharing(ToyFramework):
    """On a device that all workers share; `free` leaves a line in the log."""

    def __init__(self, *args, **settings):
        super().__init__(*args, **settings)
        self.device = "shared"

    def free(self):
        print("freed")


class SharingTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.backend.growing:Sharing"


class AcceleratorError(RuntimeError):
    """Called as that of PyTorch."""


class Spoiled(ToyFramework):
    """After an error of its GPU nothing works any more in the same process."""

    is_spoiled = False

    def train(self, call, shard, state, allocate):
        if self.is_spoiled or call.params[0].get("is_wrong"):
            self.is_spoiled = True
            raise AcceleratorError("device-side assert triggered")
        return super().train(call, shard, state, allocate)


class SpoiledTask(ToyTask):
    framework: ClassVar[str] = "tests.unit.backend.growing:Spoiled"
