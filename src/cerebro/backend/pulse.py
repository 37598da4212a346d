"""A page shared with a worker in which it shows that it lives, and how far it is."""

from __future__ import annotations

import mmap
import os
import struct
import threading
import time

from cerebro.backend.arena import create_arena
from cerebro.train.progress import PROGRESS

#: Moment of the last beat, moment at which the count was last seen to move, count of batches, and
#: whether the worker shall end; moments in nanoseconds of the clock that all processes share.
_LAYOUT = "QQQQ"
_BYTES = struct.calcsize(_LAYOUT)
_ENDING = 3


class Pulse:
    """The driver's side."""

    def __init__(self) -> None:
        self.fd = create_arena()
        os.ftruncate(self.fd, mmap.PAGESIZE)
        self._page = mmap.mmap(self.fd, mmap.PAGESIZE)

    @property
    def beat_s(self) -> float:
        """When it last gave a sign of life, on the clock of `time.monotonic`."""
        return self._read()[0] / 1e9

    @property
    def moved_s(self) -> float:
        """When its count of batches was last seen to move."""
        return self._read()[1] / 1e9

    @property
    def batches(self) -> int:
        return self._read()[2]

    def end(self) -> None:
        """Let the worker know that the next SIGTERM is meant for it."""
        struct.pack_into("Q", self._page, 8 * _ENDING, 1)

    def close(self) -> None:
        self._page.close()
        os.close(self.fd)

    def _read(self) -> tuple[int, int, int, int]:
        return struct.unpack_from(_LAYOUT, self._page)


class Heart:
    """The worker's side: a thread that beats while this process can run Python at all."""

    def __init__(self, fd: int, interval_s: float) -> None:
        self._shown = memoryview(mmap.mmap(fd, mmap.PAGESIZE))[:_BYTES].cast("Q")
        self._interval_s = interval_s

    @property
    def is_ending(self) -> bool:
        """Whether the driver wants this process to end."""
        return bool(self._shown[_ENDING])

    def start(self) -> None:
        """Beat from now on, and show the count of batches."""
        PROGRESS.show_in(self._shown.cast("B")[16:24])
        threading.Thread(target=self._beat, name="cerebro-heart", daemon=True).start()

    def _beat(self) -> None:
        shown, seen = self._shown, -1
        while True:
            now = time.monotonic_ns()
            if shown[2] != seen:
                seen = shown[2]
                shown[1] = now
            shown[0] = now
            time.sleep(self._interval_s)
