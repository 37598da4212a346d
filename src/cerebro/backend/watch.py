"""Whether a worker that has a call is still at it, judged by its pulse."""

from __future__ import annotations

import math
import statistics
from collections import deque
from typing import Protocol

from cerebro.backend.limits import Limits

#: A batch that takes so many times as long as others is stuck.
_SLOWER = 20
#: Visits whose batches were timed and are remembered.
_VISITS = 64
#: Of a limit, after which a worker is suspected; it is hung if nothing has changed at its end. So
#: the time in which the whole machine was asleep is not held against it.
_SUSPICION = 0.9


class Signs(Protocol):
    """What can be seen of a worker."""

    @property
    def beat_s(self) -> float: ...

    @property
    def moved_s(self) -> float: ...

    @property
    def batches(self) -> int: ...


class Pace:
    """How long batches take, over all workers.

    >>> pace = Pace()
    >>> pace.add(3.0)
    >>> pace.batch_s
    3.0
    """

    def __init__(self) -> None:
        self._seconds: deque[float] = deque(maxlen=_VISITS)

    def add(self, batch_s: float) -> None:
        self._seconds.append(batch_s)

    @property
    def batch_s(self) -> float:
        """The median; 0 while nothing is known."""
        return statistics.median(self._seconds) if self._seconds else 0.0


class Watch:
    """Looks at one worker now and then; moments are those of one monotonic clock."""

    def __init__(self, signs: Signs, limits: Limits, pace: Pace) -> None:
        self._signs = signs
        self._limits = limits
        self._pace = pace
        self._began = 0.0
        self._first = 0
        #: What was seen when it was first suspected, and when its time is up.
        self._suspected: tuple[str, float] | None = None
        self._up = math.inf

    def begin(self, now: float) -> None:
        """It gets a call."""
        self._began, self._first = now, self._signs.batches
        self._suspected, self._up = None, math.inf

    def end(self, now: float) -> None:
        """It has answered."""
        batches = self._signs.batches - self._first
        if batches > 0:
            self._pace.add((now - self._began) / batches)

    @property
    def due(self) -> float:
        """When to look again."""
        if self._suspected is not None:
            return self._up
        return min(since + _SUSPICION * limit for _, since, limit in self._silences())

    def look(self, now: float) -> str | None:
        """What is wrong with it, if anything is."""
        for what, since, limit in self._silences():
            if now < since + _SUSPICION * limit:
                continue
            if self._suspected != (what, since):
                self._suspected, self._up = (what, since), now + (1 - _SUSPICION) * limit
            elif now >= self._up:
                return f"hung: no {what} for {limit:g} s"
            return None
        self._suspected = None
        return None

    def _silences(self) -> list[tuple[str, float, float]]:
        """What is missing, since when, and how long it may be."""
        signs, limits = self._signs, self._limits
        # The last one has only begun.
        done, moved_s = signs.batches - self._first - 1, max(signs.moved_s, self._began)
        own_s = (moved_s - self._began) / done if done > 0 else 0.0
        stall_s = max(limits.stall_s, _SLOWER * max(own_s, self._pace.batch_s))
        return [
            ("heartbeat", max(signs.beat_s, self._began), limits.heartbeat_s),
            ("batch", moved_s, stall_s),
        ]
