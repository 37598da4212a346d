"""How fast workers are against each other, from what visits took; no clock is read."""

from __future__ import annotations

from bisect import bisect_left
from itertools import accumulate
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cerebro.mop.state import UnitState

#: Workers whose speeds differ by less are alike: visits of one unit vary by as much.
ALIKE = 1.3
# Once they are known to differ, they are until they come so close.
_ALIKE_AGAIN = 1.15
# However much is known, so much of the last comparison counts: a worker may become slower.
_LEAST_GAIN = 0.25
# A single visit that was held up says no more than this about its worker.
_LARGEST_STEP = 8.0
# No worker is so many times faster or slower than another.
_LIMIT = 1000.0
# Among more workers than this, units that differ make some look slow: only comparisons count.
_GUESSED = 16
# One change among so many workers matters little: they are put in order after some.
_AMONG = 64


class Pace:
    """What is known about one worker, from its joining to its loss."""

    __slots__ = ("guesses", "is_compared", "is_live", "since", "speed", "sure", "unit", "visits")

    def __init__(self, speed: float = 1.0) -> None:
        self.speed = speed
        #: visits answered; the first one takes longer than others
        self.visits = 0
        #: comparisons with other workers, first visits left out
        self.sure = 0
        #: first visits of units from which the speed is guessed until there is a comparison
        self.guesses = 0
        self.is_compared = False
        self.is_live = True
        #: when the visit that runs was begun, and of which unit it is
        self.since = 0.0
        self.unit: UnitState | None = None


class Speeds:
    """The speeds of live workers.

    A unit that moves from one worker to another compares the two. Until it is compared, a worker
    is taken to be as slow as the first visits it ran were, against those of all units.

    >>> speeds = Speeds()
    >>> slow, fast = speeds.join(0), speeds.join(1)
    >>> speeds.compare(fast, slow, error=4.0, is_sure=True)
    >>> speeds.differ, fast.speed / slow.speed
    (True, 4.0)
    """

    def __init__(self) -> None:
        self.paces: dict[int, Pace] = {}
        #: whether there are slow and fast workers
        self.differ = False
        self.slowest = self.fastest = 1.0
        #: seconds of a unit of weight 1 on a worker of speed 1; 0.0 until one is measured
        self.typical_s = 0.0
        self._measured = 0
        self._changes = 0
        #: speeds, slowest first; sums of the 0, 1, ... fastest
        self._order: list[float] = []
        self._sums = [0.0]

    def join(self, worker: int) -> Pace:
        """A worker of which nothing is known: as fast as most."""
        order = self._order
        pace = self.paces[worker] = Pace(order[len(order) // 2] if order else 1.0)
        self._changed()
        return pace

    def lose(self, worker: int) -> None:
        """Forget a worker."""
        self.paces.pop(worker).is_live = False
        self._changed()

    def guess(self, pace: Pace, weight: float, seconds: float) -> None:
        """The first visit of a unit took so long on this worker."""
        self._measured += 1
        typical = self.typical_s or seconds / weight
        if not pace.is_compared and len(self.paces) <= _GUESSED:
            pace.guesses += 1
            found = typical * weight / (seconds * pace.speed)
            pace.speed = _sane(pace.speed * found ** (1.0 / pace.guesses))
            self._changed()
        self.typical_s = typical * (seconds / weight / typical) ** (1.0 / self._measured)

    def compare(self, pace: Pace, before: Pace, error: float, is_sure: bool) -> None:
        """Visits of one unit show one worker, against another, `error` times faster than known."""
        known = pace.sure + before.sure
        share = (before.sure + 1) / (known + 2)
        gain, gain_before = _gain(pace.sure), _gain(before.sure)
        pace.is_compared = before.is_compared = True
        if is_sure:
            pace.sure += 1
            before.sure += 1
        if known:
            error = min(max(error, 1 / _LARGEST_STEP), _LARGEST_STEP)
        pace.speed = _sane(pace.speed * error ** (gain * share))
        before.speed = _sane(before.speed / error ** (gain_before * (1.0 - share)))
        self._changed()

    def of_fastest(self, number: int) -> float:
        """The speed of so many of the fastest workers together, or of all."""
        return self._sums[min(number, len(self._sums) - 1)]

    def of_faster(self, pace: Pace) -> float:
        """The speed of all workers together that are faster than this one, and not just alike."""
        slower = bisect_left(self._order, pace.speed * ALIKE)
        return self._sums[len(self._order) - slower]

    def _changed(self) -> None:
        self._changes += 1
        if self._changes * _AMONG >= len(self.paces):
            self._changes = 0
            self._order = order = sorted(pace.speed for pace in self.paces.values())
            self._sums = [0.0, *accumulate(reversed(order))]
            self.slowest, self.fastest = (order[0], order[-1]) if order else (1.0, 1.0)
            self.differ = self.fastest > self.slowest * (_ALIKE_AGAIN if self.differ else ALIKE)


def _sane(speed: float) -> float:
    return min(max(speed, 1.0 / _LIMIT), _LIMIT)


def _gain(sure: int) -> float:
    return max(1.0 / (sure + 1), _LEAST_GAIN)
