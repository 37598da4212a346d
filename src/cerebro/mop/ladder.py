"""A priority queue for very many units: constant cost, whatever its length."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import TypeAlias

from cerebro.mop.state import UnitState

#: (rung, order of arrival, unit): the second is unique, so units are never compared
Entry: TypeAlias = tuple[int, int, UnitState]


class Ladder:
    """Entries on rungs: the longest first, those on one rung in order of arrival.

    A binary heap of ten thousand entries costs a dozen cache misses per removal; here the entries
    of a rung lie in line. An entry counts only while its unit still points at it, so that entries
    may be served from elsewhere without being searched for here.

    >>> from cerebro.mop.visit import Unit
    >>> ladder, unit = Ladder(), UnitState(Unit(0, (0,), 0, 1), 4)
    >>> unit.entry = (unit.rung(), 1, unit)
    >>> ladder.push(unit.entry)
    >>> ladder.take() is unit, ladder.top()
    (True, None)
    """

    __slots__ = ("_order", "_rungs")

    def __init__(self) -> None:
        self._rungs: dict[int, deque[Entry]] = {}
        self._order: list[int] = []

    def push(self, entry: Entry) -> None:
        rung = self._rungs.get(entry[0])
        if rung is None:
            self._rungs[entry[0]] = rung = deque()
            heappush(self._order, entry[0])
        rung.append(entry)

    def top(self) -> Entry | None:
        """The entry that `take` would take, if any."""
        order = self._order
        while order:
            rung = self._rungs[order[0]]
            while rung:
                entry = rung[0]
                if entry[2].entry is entry:
                    return entry
                rung.popleft()
            del self._rungs[heappop(order)]
        return None

    def take(self) -> UnitState | None:
        """The unit on top, taken out of all queues."""
        entry = self.top()
        if entry is None:
            return None
        self._rungs[entry[0]].popleft()
        entry[2].entry = None
        return entry[2]

    def live(self) -> list[Entry]:
        """The entries that count, in no order."""
        rungs = self._rungs.values()
        return [entry for rung in rungs for entry in rung if entry[2].entry is entry]

    def clean(self) -> int:
        """Drop the entries that do not count; how many are left."""
        live = 0
        for rung, entries in self._rungs.items():
            self._rungs[rung] = kept = deque(e for e in entries if e[2].entry is e)
            live += len(kept)
        return live

    def clear(self) -> None:
        self._rungs.clear()
        self._order.clear()
