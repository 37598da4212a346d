"""Which ready visit goes to which idle worker: held shard first, then longest remaining first.

Where workers are known to differ in speed the fastest idle one comes first, and a slow one takes
only what suits it (`Balance.suits`): it may wait beside visits that a faster one will take.

Entries are dropped lazily: an entry counts only while its unit still points at it, so serving a
unit from one queue needs no search in the others.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from heapq import heapify, heappop, heappush
from itertools import islice
from typing import TypeAlias

from cerebro.mop.balance import Balance
from cerebro.mop.ladder import Entry, Ladder
from cerebro.mop.speeds import ALIKE
from cerebro.mop.state import UnitState

#: The ready visits on the shards that one set of workers holds: few, so a heap is quickest.
Home: TypeAlias = list[Entry]

# Arrivals between two cleanings of what is held, beyond the number of live entries.
_SLACK = 1024
# Rungs of ready visits on which one is sought that suits a slow worker.
_RUNGS_TRIED = 32
# Idle workers, the latest first, of which the fastest is taken.
_IDLE_TRIED = 16


class Placement:
    """Ready units and idle workers.

    A visit whose shard some workers hold waits in the queue of exactly that set of workers, and in
    one queue of all held visits from which other workers help themselves when they would idle. A
    visit that nobody holds waits in one queue for everyone.

    >>> from cerebro.mop.visit import Unit
    >>> placement, unit = Placement(shards=4), UnitState(Unit(0, (0,), 0, 1), 4)
    >>> placement.join(7, frozenset())
    >>> placement.push(unit, 2)
    >>> placement.take(7) is unit, placement.take(7)
    (True, None)
    """

    def __init__(self, shards: int, val_shards: int = 0) -> None:
        self.balance = Balance(shards, val_shards)
        #: workers without a visit; the latest to become idle is last
        self.idle: dict[int, None] = {}
        #: live worker -> train shards it holds
        self.holds: dict[int, frozenset[int]] = {}
        self._shards = shards
        self._arrivals = 0
        self._cleaning = -_SLACK
        self._free = Ladder()
        self._held = Ladder()
        #: visits that start only while nothing else runs; whether the one that runs is such a one
        self._alone: deque[Entry] = deque()
        self._runs_alone = False
        #: whether there is or was one of them: nothing else may be started
        self.is_barred = False
        # By shard; the last element, reached with -1, serves visits that have no home.
        self._homes: list[Home | None] = [None] * (shards + 1)
        self._holders: list[tuple[int, ...]] = [()] * (shards + 1)
        self._has_homes = False
        self._queues: dict[int, tuple[Home, ...]] = {}
        self._is_stale = False

    def join(self, worker: int, holds: frozenset[int]) -> None:
        """Admit a worker, or replace what it holds; making it idle is the caller's."""
        changed = bool(holds) or bool(self.holds.get(worker))
        self.balance.join(worker)
        self.holds[worker] = holds
        self._queues[worker] = ()
        if changed:
            self._regroup_if_needed()

    def lose(self, worker: int) -> None:
        """Forget a worker."""
        self.balance.lose(worker)
        del self._queues[worker]
        self.idle.pop(worker, None)
        if self.holds.pop(worker):
            self._regroup_if_needed()

    def push(self, state: UnitState, shard: int) -> None:
        """Make a unit's next visit ready, on `shard` of the train split or anywhere (-1)."""
        if self._is_stale:
            self._regroup()
        self._arrivals = arrival = self._arrivals - 1
        state.shard = shard
        state.entry = entry = (state.rung(), arrival, state)
        home = self._homes[shard]
        if home is None:
            self._free.push(entry)
            return
        heappush(home, entry)
        self._held.push(entry)
        if arrival < self._cleaning:
            self._clean()

    def push_again(self, state: UnitState, shard: int) -> None:
        """The same for a visit that may have failed before.

        One that was out of memory starts once nothing runs; until it is through, nothing starts.
        """
        if not state.history(state.step if shard >= 0 else state.evals[-1]).memory:
            self.push(state, shard)
            return
        self._arrivals -= 1
        state.shard = shard
        state.entry = entry = (state.rung(), self._arrivals, state)
        self._alone.append(entry)
        self.is_barred = True

    def take(self, worker: int) -> UnitState | None:
        """The unit this worker should serve next, taken out of the queues; not while barred."""
        if not self._has_homes:
            return self._free.take()
        best = self._free.top()
        source: Home | None = None
        for home in self._queues[worker]:
            while home:
                entry = home[0]
                if entry[2].entry is entry:
                    if best is None or entry < best:
                        best, source = entry, home
                    break
                heappop(home)
        if source is None or best is None:
            return (self._held if best is None else self._free).take()
        heappop(source)
        state = best[2]
        state.entry = None
        return state

    def match(self) -> tuple[UnitState, int] | None:
        """A ready unit, taken out of the queues, and the idle worker for it; None to wait."""
        state = self.take_longest()
        if state is None:
            return None
        if not self.balance.is_tight or self.is_barred:
            return state, self.choose(state.shard)
        worker = self._choose_fast(state.shard)
        suited = self.suited(worker, state)
        return None if suited is None else (suited, worker)

    def suited(self, worker: int, state: UnitState | None) -> UnitState | None:
        """This unit if it suits the worker, else one that does, or none."""
        if state is None or self.balance.suits(worker, state, self.idle):
            return state
        self.push(state, state.shard)
        for entry in self._free.tops(_RUNGS_TRIED) + self._held.tops(_RUNGS_TRIED):
            other = entry[2]
            if other is not state and self.balance.can_spare(worker, other):
                other.entry = None
                return other
        return None

    def take_longest(self) -> UnitState | None:
        """The ready unit with most left to do, taken out of the queues."""
        if self.is_barred:
            state = self._take_alone()
            if state is not None or self.is_barred:
                return state
        held = self._held.top()
        if held is None:
            return self._free.take()
        free = self._free.top()
        return (self._held if free is None or held < free else self._free).take()

    def choose(self, shard: int) -> int:
        """The idle worker for a visit: one that holds the shard, else the latest to idle.

        The latest to idle is the one that just worked on this unit, if any: no hop.
        """
        idle, holders = self.idle, self._holders[shard]
        latest = next(reversed(idle))
        if not holders or shard in self.holds[latest]:
            return latest
        if len(holders) <= len(idle):
            return next((worker for worker in holders if worker in idle), latest)
        return next((worker for worker in idle if shard in self.holds[worker]), latest)

    def _choose_fast(self, shard: int) -> int:
        """The same among those that are as fast as the fastest idle worker."""
        paces, holds = self.balance.paces, self.holds
        latest = list(islice(reversed(self.idle), _IDLE_TRIED))
        enough = max(paces[worker].speed for worker in latest) / ALIKE
        fast = [worker for worker in latest if paces[worker].speed >= enough]
        return next((worker for worker in fast if shard in holds[worker]), fast[0])

    def ready(self) -> Iterator[UnitState]:
        """Every unit that waits for a worker."""
        alone = [entry for entry in self._alone if entry[2].entry is entry]
        for entry in self._free.live() + self._held.live() + alone:
            yield entry[2]

    def _take_alone(self) -> UnitState | None:
        """The next visit that runs alone, if its time has come; lifts the bar after the last."""
        while self._alone and self._alone[0][2].entry is not self._alone[0]:
            self._alone.popleft()
        if len(self.idle) == len(self.holds):
            self._runs_alone = False
        elif self._alone or self._runs_alone:
            return None
        if not self._alone:
            self.is_barred = False
            return None
        state = self._alone.popleft()[2]
        state.entry = None
        self._runs_alone = True
        return state

    def _regroup_if_needed(self) -> None:
        # A thousand workers join before the first unit: group once, when something is ready.
        self._is_stale = True
        if self._free.top() or self._held.top():
            self._regroup()

    def _regroup(self) -> None:
        """One home per set of holders; what is ready moves to where it belongs now."""
        self._is_stale = False
        holders: dict[int, list[int]] = {}
        for worker, shards in self.holds.items():
            for shard in shards:
                holders.setdefault(shard, []).append(worker)
        homes: dict[tuple[int, ...], Home] = {}
        for shard in range(self._shards):
            group = tuple(holders.get(shard, ()))
            self._holders[shard] = group
            self._homes[shard] = homes.setdefault(group, []) if group else None
        self._has_homes = bool(homes)
        queues: dict[int, list[Home]] = {worker: [] for worker in self.holds}
        for group, home in homes.items():
            for worker in group:
                queues[worker].append(home)
        self._queues = {worker: tuple(mine) for worker, mine in queues.items()}
        live = sorted(self._free.live() + self._held.live(), reverse=True)
        self._free.clear()
        self._refill(live)

    def _refill(self, live: list[Entry]) -> None:
        """Put ready visits where they belong; `live` in order of arrival on each rung."""
        self._held.clear()
        for entry in live:
            home = self._homes[entry[2].shard]
            if home is None:
                self._free.push(entry)
            else:
                heappush(home, entry)
                self._held.push(entry)

    def _clean(self) -> None:
        """Drop stale entries of held visits; paid for by as many arrivals."""
        homes = {id(home): home for home in self._homes if home is not None}.values()
        for home in homes:
            home[:] = [entry for entry in home if entry[2].entry is entry]
            heapify(home)
        num_live = self._held.clean()
        self._cleaning = self._arrivals - 2 * num_live - len(homes) - _SLACK
