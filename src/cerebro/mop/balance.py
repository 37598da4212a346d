"""Whether a slow worker should take a visit, or leave it to a faster one."""

from __future__ import annotations

from collections.abc import Collection
from itertools import islice
from math import inf

from cerebro.mop.speeds import ALIKE, Pace, Speeds
from cerebro.mop.state import UnitState

# Workers that are looked at to find out who will be free next.
_LOOKED_AT = 64
# How much of each new measurement goes into the cost of an eval visit.
_SMOOTHING = 0.125
_ROUNDING = 1 + 1e-9
# A comparison that is as expected, within these bounds, teaches nothing about workers that were
# compared more often than this.
_LEAST, _MOST = 0.9, 1.1
_WELL_KNOWN = 4
# Of its visits then every so many'th is looked at; a power of two, less one.
_SOME = 7
# What takes less is too short to tell anything about a worker.
_FINEST_S = 1e-6


class Balance:
    """What is left to do, and how fast workers do it.

    Times are counted from the seconds that visits took: the clock stands where the latest answer
    put it. While there is plenty to do for each worker, slow ones need not be held back, and what
    is left is not counted.

    >>> from cerebro.mop.visit import Unit
    >>> balance, unit = Balance(shards=4, val_shards=0), UnitState(Unit(0, (0,), 0, 1), 4)
    >>> slow, fast = balance.join(0), balance.join(1)
    >>> balance.add(unit)
    >>> balance.trained(0, unit, seconds=4.0)
    >>> balance.trained(1, unit, seconds=1.0)
    >>> balance.speeds.differ, fast.speed / slow.speed
    (True, 4.0)
    """

    def __init__(self, shards: int, val_shards: int = 0) -> None:
        self.speeds = Speeds()
        self.paces = self.speeds.paces
        self.now = 0.0
        #: whether speeds differ and so little is left that some unit may be late
        self.is_tight = False
        #: seconds that are left on one worker of speed 1, counted while it is tight
        self.work = 0.0
        self.open: dict[int, UnitState] = {}
        #: an eval visit against a train visit
        self.eval_share = 0.25
        self._shards = shards
        self._val_shards = val_shards
        #: when to find out whether it is tight
        self._look_at = 0.0

    def join(self, worker: int) -> Pace:
        """Admit a worker; one that is there keeps its speed."""
        self._look_at = 0.0
        return self.paces.get(worker) or self.speeds.join(worker)

    def lose(self, worker: int) -> None:
        """Forget a worker and its speed."""
        self._look_at = 0.0
        self.speeds.lose(worker)

    def add(self, state: UnitState) -> None:
        """A unit that is not finished."""
        self.open[state.id] = state
        self._look_at = 0.0
        self.recount(state)

    def drop(self, state: UnitState) -> None:
        """A unit that is closed."""
        if self.open.pop(state.id, None) is not None:
            self.work -= state.work
            state.work = 0.0

    def trained(self, worker: int, state: UnitState, seconds: float) -> None:
        """A train visit is done: one less for the unit, and one more measured."""
        pace = self.paces[worker]
        pace.visits += 1
        now = pace.since + seconds
        if now > self.now:
            self.now = now
        # Of a worker that is known well, some visits tell enough.
        if pace.sure > _WELL_KNOWN and pace.visits & _SOME and not state.is_raw:
            state.advance(seconds * pace.speed)
        elif seconds > _FINEST_S:
            self._measure(pace, state, seconds)
        else:
            state.advance(seconds)
        if self.speeds.differ or self._look_at:
            self._keep_count(state)

    def evaluated(self, worker: int, state: UnitState, seconds: float) -> None:
        """An eval visit is done."""
        pace = self.paces[worker]
        pace.visits += 1
        self.now = max(self.now, pace.since + seconds)
        if seconds > _FINEST_S and state.visit_s > _FINEST_S:
            share = seconds * pace.speed / state.visit_s
            self.eval_share += _SMOOTHING * (share - self.eval_share)
        self.recount(state)

    def recount(self, state: UnitState) -> None:
        """Count anew what is left of a unit."""
        if self.is_tight and not state.closed:
            self._count(state)

    def suits(self, worker: int, state: UnitState, idle: Collection[int]) -> bool:
        """Whether the run ends no later if this worker takes the unit's next visit now.

        It does where the rest of the unit, on the fastest worker, is through before all work is;
        where the unit would wait longer for a faster worker; and where the faster workers alone
        would take longer over all work, unless a unit that can be spared is free in a moment.
        """
        pace = self.paces[worker]
        return self.can_spare(worker, state) or self._is_needed(pace, state, idle)

    def can_spare(self, worker: int, state: UnitState) -> bool:
        """Whether this worker is fast, or the unit is through before all work is anyway."""
        pace, fastest = self.paces[worker], self.speeds.fastest
        if pace.speed * ALIKE >= fastest:
            return True
        cost, rest = self._next(state)
        return cost / pace.speed + rest / fastest <= self._due() * _ROUNDING

    def is_waiting_right(self, idle: Collection[int], busy: Collection[int]) -> bool:
        """Whether idle workers may wait: only for faster ones that are busy."""
        fastest = max((self.paces[worker].speed for worker in busy), default=0.0)
        return all(self.paces[worker].speed * ALIKE < fastest for worker in idle)

    def _measure(self, pace: Pace, state: UnitState, seconds: float) -> None:
        before = state.measured_by
        if before is None:
            if not state.visit_s:
                self.speeds.guess(pace, state.unit.weight, seconds)
        elif before is not pace and before.is_live:
            # How many times faster this worker is, against the one before, than was known.
            error = state.measured_s * before.speed / (seconds * pace.speed)
            is_known = pace.sure > _WELL_KNOWN and before.sure > _WELL_KNOWN
            if not (is_known and _LEAST < error < _MOST):
                self.speeds.compare(pace, before, error, state.is_warm and pace.visits > 1)
        if state.is_raw and before is not None and before.is_compared:
            state.visit_s *= before.speed
        state.measured_by, state.measured_s = pace, seconds
        state.is_warm = pace.visits > 1
        # A unit that takes long is as likely as a slow worker, until that is compared.
        state.is_raw = not pace.is_compared
        state.advance(seconds if state.is_raw else seconds * pace.speed)

    def _cost(self, state: UnitState) -> float:
        if state.is_raw and state.measured_by is not None:
            return state.visit_s * state.measured_by.speed
        return state.visit_s or state.unit.weight * self.speeds.typical_s

    def _count(self, state: UnitState) -> None:
        visits = state.left * (1.0 + self._val_shards * self.eval_share / self._shards)
        work = (visits + state.evals_left * self.eval_share) * self._cost(state)
        self.work += work - state.work
        state.work = work

    def _next(self, state: UnitState) -> tuple[float, float]:
        """What a unit's next visit costs, and the chain of those after it."""
        cost = self._cost(state)
        if state.step < self._shards:
            return cost, (state.left - 1) * cost
        return cost * self.eval_share, state.left * cost

    def _keep_count(self, state: UnitState) -> None:
        if not self.speeds.differ:
            self.is_tight, self._look_at = False, 0.0
        elif self.now >= self._look_at:
            self._look()
        elif self.is_tight:
            self._count(state)

    def _look(self) -> None:
        """Count what is left, and find out whether a slow worker could make some unit late."""
        self.work = latest = 0.0
        slowest, fastest = self.speeds.slowest, self.speeds.fastest
        for state in self.open.values():
            state.work = 0.0
            self._count(state)
            cost, rest = self._next(state)
            latest = max(latest, cost / slowest + rest / fastest)
        due = self._due()
        self.is_tight = 2.0 * latest > due
        # Until half of it is done none could; what is tight is so until something is added.
        self._look_at = inf if self.is_tight else self.now + due / 2.0

    def _due(self) -> float:
        """No plan ends before: seconds from now until all work is done."""
        lanes = len(self.paces) if self._val_shards else len(self.open)
        return self.work / self.speeds.of_fastest(lanes)

    def _is_needed(self, pace: Pace, state: UnitState, idle: Collection[int]) -> bool:
        """Whether a unit that would be late should be: who is faster, and when are they free?"""
        fastest = self.speeds.fastest
        cost, rest = self._next(state)
        end = (cost / pace.speed + rest / fastest) / _ROUNDING
        due = max(self._due(), (cost + rest) / fastest)
        other_end = spare_end = inf
        for worker, other in islice(self.paces.items(), _LOOKED_AT):
            unit = other.unit
            if other is pace or unit is None or worker in idle:
                continue
            running, after = self._next(unit)
            wait = max(0.0, other.since + running / other.speed - self.now)
            if not unit.closed:
                due = max(due, wait + after / fastest)
            if other.speed < pace.speed * ALIKE:
                continue
            other_end = min(other_end, wait + cost / other.speed + rest / fastest)
            if after and not unit.closed:
                spare = self._cost(unit)
                spare_end = min(spare_end, wait + spare / pace.speed + (after - spare) / fastest)
        if end <= due or end <= other_end:
            return True
        is_spared = self.work < end * self.speeds.of_faster(pace)
        return not is_spared and spare_end > due
