"""A rank of this machine as its agent sees it: a follower that may be started again."""

from __future__ import annotations

import time

from cerebro.backend.base import Setup
from cerebro.backend.gang.follower import FAILED, FollowerProcess, start_follower


class Rank:
    """A follower, its place, and when it came and went.

    Args:
        seat: Its place among the ranks of this machine.
        gang: Where the gang meets.
        join_s: How long it looks for its leader.
    """

    def __init__(self, setup: Setup, number: int, seat: int, gang: str, join_s: float) -> None:
        self._setup = setup
        self.number = number
        self._seat = seat
        self._gang = gang
        self._join_s = join_s
        #: It ended in a way in which it would end again.
        self.is_given_up = False
        self._process: FollowerProcess | None = None
        self.start()

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        self.end()
        self._began = time.monotonic()
        self._ended: float | None = None
        self._process = start_follower(
            self._setup, self.number, seat=self._seat, address=self._gang, join_s=self._join_s
        )

    def poll(self) -> int | None:
        code = None if self._process is None else self._process.poll()
        if code is not None and self._ended is None:
            self._ended = time.monotonic()
        return code

    def seconds_since_end(self) -> float:
        return 0.0 if self._ended is None else time.monotonic() - self._ended

    def has_failed(self, code: int) -> bool:
        """Whether it could not start; one that has found no leader is late, nothing else."""
        lived_s = (self._ended or time.monotonic()) - self._began
        return code == FAILED and lived_s < self._join_s

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process = None
