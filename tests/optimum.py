"""The shortest plan there is, by looking at all of them: for plans of a few visits."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple


class _Plan(NamedTuple):
    """Visits begun so far, in the order of their beginnings."""

    #: when each worker is free
    free: tuple[float, ...]
    #: of each unit: when its next visit may begin, and how many are left
    units: tuple[tuple[float, int], ...]
    #: when the last visit was begun
    now: float


class Optimum:
    """Searches for it, depth first.

    Args:
        train: What a visit of each unit costs: seconds on a worker of speed 1.
        speeds: Of the workers.
        visits: Train visits of each unit, all epochs together.

    >>> Optimum(train=(1.0, 1.0), speeds=(1.0, 0.25), visits=4).seconds
    7.0
    """

    def __init__(self, train: Sequence[float], speeds: Sequence[float], visits: int) -> None:
        self._train = tuple(sorted(train, reverse=True))
        self._speeds = tuple(sorted(speeds, reverse=True))
        self._seen: set[_Plan] = set()
        self.seconds = inf
        units = ((0.0, visits),) * len(train)
        self._go_on(_Plan((0.0,) * len(speeds), units, 0.0))

    def _go_on(self, plan: _Plan) -> None:
        if not any(left for _, left in plan.units):
            self.seconds = min(self.seconds, max(ready for ready, _ in plan.units))
            return
        for _, following in sorted(self._following(plan)):
            if self._bound(following) < self.seconds - 1e-9 and following not in self._seen:
                self._seen.add(following)
                self._go_on(following)

    def _following(self, plan: _Plan) -> list[tuple[float, _Plan]]:
        """Every visit that could begin next, the one that ends first at the head."""
        found = []
        tried: set[tuple[float, float, float, float, int]] = set()
        for unit, (ready, left) in enumerate(plan.units):
            for worker, free in enumerate(plan.free):
                begin = max(ready, free)
                kind = (self._train[unit], self._speeds[worker], free, ready, left)
                if not left or begin < plan.now or kind in tried:
                    continue
                tried.add(kind)
                end = round(begin + self._train[unit] / self._speeds[worker], 9)
                units = list(plan.units)
                units[unit] = (end, left - 1)
                frees = list(plan.free)
                frees[worker] = end
                found.append((end, self._tidy(frees, units, begin)))
        return found

    def _tidy(self, free: list[float], units: list[tuple[float, int]], now: float) -> _Plan:
        """One form for plans that differ in the names of like workers and like units only."""
        free = [when for _, when in sorted(zip(self._speeds, free, strict=True), key=_faster_first)]
        alike = sorted(zip(self._train, units, strict=True), key=lambda pair: (-pair[0], pair[1]))
        return _Plan(tuple(free), tuple(unit for _, unit in alike), now)

    def _bound(self, plan: _Plan) -> float:
        """No plan that begins like this ends before."""
        fastest = self._speeds[0]
        chains = [
            max(ready, plan.now if left else 0.0) + left * cost / fastest
            for cost, (ready, left) in zip(self._train, plan.units, strict=True)
        ]
        work = sum(cost * left for cost, (_, left) in zip(self._train, plan.units, strict=True))
        work += sum(
            max(free, plan.now) * speed for free, speed in zip(plan.free, self._speeds, strict=True)
        )
        return max(*chains, work / sum(self._speeds), 0.0)


def _faster_first(pair: tuple[float, float]) -> tuple[float, float]:
    speed, when = pair
    return -speed, when
