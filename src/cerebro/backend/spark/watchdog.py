"""Ends this process when its call does not move on: Spark knows no such limit."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from cerebro.backend.limits import Limits
from cerebro.backend.watch import Pace, Watch
from cerebro.train.progress import PROGRESS


class Watchdog:
    """Looks after one call at a time.

    Args:
        pace: How long batches take in this process.
        end: Called with what is wrong, from a thread of its own, once a call hangs.

    >>> dog = Watchdog(Limits(), Pace(), print)
    >>> with dog.watching():
    ...     PROGRESS.tick()
    """

    def __init__(self, limits: Limits, pace: Pace, end: Callable[[str], object]) -> None:
        self._watch = Watch(self, limits, pace)
        self._interval_s = min(1.0, limits.stall_s / 20)
        self._end = end
        self._moved_s = 0.0

    @property
    def beat_s(self) -> float:
        """A thread of this process asks, so it lives; executors show theirs to Spark."""
        return time.monotonic()

    @property
    def moved_s(self) -> float:
        return self._moved_s

    @property
    def batches(self) -> int:
        return PROGRESS.batches

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look after what is done inside."""
        self._moved_s = time.monotonic()
        self._watch.begin(self._moved_s)
        is_over = threading.Event()
        thread = threading.Thread(target=self._look, args=[is_over], daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()
            self._watch.end(time.monotonic())

    def _look(self, is_over: threading.Event) -> None:
        seen = self.batches
        while not is_over.wait(self._interval_s):
            now = time.monotonic()
            if self.batches != seen:
                seen, self._moved_s = self.batches, now
            cause = self._watch.look(now)
            if cause is not None:
                self._end(cause)
                return
