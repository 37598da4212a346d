"""Tasks that hang; workers import them from here."""

from __future__ import annotations

import os
import signal
import struct
import threading
from pathlib import Path
from typing import ClassVar

from cerebro.testing.toy import ToyFramework, ToyTask


class SpinningTask(ToyTask):
    framework: ClassVar[str] = f"{__name__}:Spinning"


class Spinning(ToyFramework):
    """With `spin` its loss never returns; it makes the file of that name."""

    def _loop(self, call, index, shard, tensors):
        if call.params[0].get("spin"):
            spin_for_ever(Path(call.params[0]["spin"]))
        return super()._loop(call, index, shard, tensors)


def spin_for_ever(mark):
    mark.touch()
    while True:
        pass


class BreakingTask(ToyTask):
    framework: ClassVar[str] = f"{__name__}:Breaking"


class Breaking(ToyFramework):
    """With `break_off` its process stops in the middle of its answer."""

    def train(self, call, *args):
        if call.params[0].get("break_off"):
            for name in os.listdir("/proc/self/fd"):
                if (
                    os.path.realpath(f"/proc/self/fd/{name}")
                    .rpartition("/")[2]
                    .startswith("socket")
                ):
                    os.write(int(name), struct.pack("!i", 1000) + b"a beginning")
            os.kill(os.getpid(), signal.SIGSTOP)
        return super().train(call, *args)


class ReadyTask(ToyTask):
    """Never made."""

    def __init__(self) -> None:
        threading.Event().wait()
