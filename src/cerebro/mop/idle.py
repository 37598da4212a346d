"""Workers without a visit, the fastest first."""

from __future__ import annotations

from heapq import heappop, heappush
from math import log2

# Workers within about 20% of each other count as equally fast, so that noise causes no hops.
_RUNGS_PER_OCTAVE = 4
# A worker never compared is tried before the others, once: that is how slow ones are found out.
_UNKNOWN = -(10**6)
_SMOOTHING = 0.25
# Entries the order may hold beyond twice the idle workers before it is cleaned.
_SLACK = 64


class Idle:
    """A pool of workers; paces are learnt only while there is a choice between workers.

    >>> idle = Idle()
    >>> idle.learn(1, seconds=4.0, usual_s=2.0), idle.learn(2, seconds=1.0, usual_s=2.0)
    (2.0, 2.0)
    >>> idle.add(2), idle.add(1), idle.best()
    (None, None, 2)
    """

    def __init__(self) -> None:
        #: idle worker -> stamp, lower for later
        self.workers: dict[int, int] = {}
        #: worker -> seconds of a visit there against elsewhere; 2.0 is half as fast
        self.paces: dict[int, float] = {}
        self._order: list[tuple[int, int, int]] = []
        self._stamp = 0

    def add(self, worker: int) -> None:
        self._stamp -= 1
        self.workers[worker] = self._stamp
        heappush(self._order, (self._rung(worker), self._stamp, worker))
        if len(self._order) > 2 * len(self.workers) + _SLACK:
            self._order = sorted(entry for entry in self._order if self._counts(entry))

    def discard(self, worker: int) -> None:
        self.workers.pop(worker, None)

    def best(self) -> int:
        """The fastest idle worker, the latest to idle among equals; there must be one.

        The latest is the one that just worked on the unit in question, if any: no hop.
        """
        while not self._counts(self._order[0]):
            heappop(self._order)
        return self._order[0][2]

    def learn(self, worker: int, seconds: float, usual_s: float) -> float:
        """Compare a visit with what its unit usually takes; the seconds it would take elsewhere."""
        pace = self.paces.get(worker)
        if usual_s > 0.0 and seconds > 0.0:
            ratio = seconds / usual_s
            pace = ratio if pace is None else pace + _SMOOTHING * (ratio - pace)
            self.paces[worker] = pace
        return seconds if pace is None else seconds / pace

    def _counts(self, entry: tuple[int, int, int]) -> bool:
        return self.workers.get(entry[2]) == entry[1]

    def _rung(self, worker: int) -> int:
        pace = self.paces.get(worker)
        return _UNKNOWN if pace is None else round(_RUNGS_PER_OCTAVE * log2(pace))
