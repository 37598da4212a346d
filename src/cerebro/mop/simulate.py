"""Discrete-event simulation of a plan through the real planner."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heapify, heappop, heappush, heapreplace
from itertools import accumulate
from typing import NamedTuple

from cerebro.mop.messages import (
    Durable,
    Event,
    Finished,
    Start,
    UnitAdded,
    VisitDone,
    WorkerJoined,
    WorkerLost,
)
from cerebro.mop.planner import Planner
from cerebro.mop.visit import Phase, Unit

_new_tuple = tuple.__new__
_EVAL = Phase.EVAL
_FOREVER = float("inf")


class Outage(NamedTuple):
    """A worker that is away between two moments, in seconds; what it was doing is lost."""

    worker: int
    at: float
    back: float = _FOREVER


class Simulation(NamedTuple):
    """What a simulated plan took."""

    makespan: float  #: seconds until the last answer
    busy: float  #: seconds workers spent on visits that were answered
    decisions: int  #: visits started
    lower_bound: float  #: seconds no plan can beat
    finished: bool  #: False where all workers left

    @property
    def ratio(self) -> float:
        """Makespan against the lower bound; 1.0 is perfect."""
        return self.makespan / self.lower_bound


class Costs(NamedTuple):
    """What visits cost: seconds on a worker of speed 1.

    >>> Costs(train=(2.0, 4.0), speeds=(1.0, 2.0), train_shards=3).lower_bound()
    6.0
    """

    train: Sequence[float]  #: a train visit, by unit
    speeds: Sequence[float]  #: by worker
    train_shards: int
    val_shards: int = 0
    epochs: int = 1
    eval_share: float = 0.25  #: an eval visit against a train visit of the same unit

    def lower_bound(self, outages: Sequence[Outage] = ()) -> float:
        """The largest of: all work on all workers; the k longest units on the k fastest.

        Visits are not tied to workers, so the largest worker load is all work over all speed; and
        k units, each with one visit at a time, keep no more than k workers busy.
        """
        epoch = self.train_shards + self.val_shards * self.eval_share
        work = sum(self.train) * epoch * self.epochs
        chain = self.train_shards + (self.eval_share if self.val_shards else 0.0)
        longest = accumulate(sorted(self.train, reverse=True))
        fastest = accumulate(sorted(self.speeds, reverse=True))
        alone = max(units / workers for units, workers in zip(longest, fastest, strict=False))
        return max(alone * chain * self.epochs, _time_for(work, self.speeds, outages))


def _time_for(work: float, speeds: Sequence[float], outages: Sequence[Outage]) -> float:
    """When workers that do nothing but work are through, given when they are away."""
    changes = [(outage.at, -speeds[outage.worker]) for outage in outages]
    changes += [(outage.back, speeds[outage.worker]) for outage in outages]
    now, speed = 0.0, sum(speeds)
    for at, change in sorted(changes):
        # Rounding must not leave a trace of speed when everybody is away.
        if speed > 1e-9 and now + work / speed <= at:
            break
        if at == _FOREVER:
            return _FOREVER if speed <= 1e-9 else now + work / speed
        work -= max(speed, 0.0) * (at - now)
        now, speed = at, speed + change
    return now + work / speed


class _Clock:
    """What will happen, in order of time; workers and the store as the planner sees them."""

    def __init__(self, planner: Planner, costs: Costs, durable: float | None) -> None:
        self.planner = planner
        self.costs = costs
        self.durable = durable
        self.decisions = 0
        self.busy = 0.0
        self.now = 0.0
        #: (when, order of arrival, event)
        self.events: list[tuple[float, int, Event]] = []
        self.arrivals = 0

    def expect(self, when: float, event: Event) -> None:
        self.arrivals += 1
        heappush(self.events, (when, self.arrivals, event))

    def run(self) -> None:
        """Until the plan is finished or nothing is left to happen."""
        events, handle, costs = self.events, self.planner.handle, self.costs
        train, speeds, arrival = costs.train, costs.speeds, self.arrivals
        busy, decisions, is_finished, has_durability = 0.0, 0, False, self.durable is not None
        while events and not is_finished:
            now, _, event = events[0]
            # An answer's place in the heap goes to the visit that follows it, if there is one.
            put: Callable[[list[tuple[float, int, Event]], tuple[float, int, Event]], object]
            put = heapreplace
            for instruction in handle(event):
                if type(instruction) is Start:
                    visit, _, (worker,) = instruction
                    unit, epoch, step, phase, _, attempt = visit
                    seconds = train[unit] / speeds[worker]
                    if phase is _EVAL:
                        seconds *= costs.eval_share
                    answer = (unit, epoch, step, phase, attempt, worker, seconds)
                    arrival += 1
                    put(events, (now + seconds, arrival, _new_tuple(VisitDone, answer)))
                    put = heappush
                    busy += seconds
                    decisions += 1
                elif type(instruction) is Finished:
                    is_finished = True
            if put is heapreplace:
                heappop(events)
            if type(event) is WorkerLost:
                self.cancel(now, event.worker)
            elif has_durability and type(event) is VisitDone and event.phase is Phase.TRAIN:
                self.arrivals = arrival
                self.commit(now, event)
                arrival = self.arrivals
        self.now, self.decisions = now, decisions
        self.busy += busy

    def cancel(self, now: float, lost: int) -> None:
        """A worker that is gone does not answer."""
        for when, _, event in self.events:
            if type(event) is VisitDone and event.worker == lost:
                self.busy -= when - now
        self.events[:] = [
            entry
            for entry in self.events
            if not (type(entry[2]) is VisitDone and entry[2].worker == lost)
        ]
        heapify(self.events)

    def commit(self, now: float, done: VisitDone) -> None:
        visits = done.epoch * self.costs.train_shards + done.step + 1
        self.expect(now + (self.durable or 0.0), Durable(done.unit, visits))


def simulate(
    costs: Costs,
    *,
    holds: Sequence[frozenset[int]] | None = None,
    outages: Sequence[Outage] = (),
    durable: float | None = None,
) -> Simulation:
    """Run a plan in simulated time.

    Args:
        costs: Units, workers and what visits cost.
        holds: Train shards that each worker holds; nobody holds any by default.
        outages: Workers that leave, and perhaps come back.
        durable: Seconds from done to durable; None plans without checkpoints.

    >>> simulate(Costs(train=(1.0, 1.0), speeds=(1.0, 1.0), train_shards=4)).makespan
    4.0
    """
    planner = Planner(costs.train_shards, costs.val_shards, max_lag=None if durable is None else 1)
    clock = _Clock(planner, costs, durable)
    held = holds or [frozenset()] * len(costs.speeds)
    for worker in range(len(costs.speeds)):
        clock.expect(0.0, WorkerJoined(worker, held[worker]))
    for number in range(len(costs.train)):
        unit = Unit(number, (number,), number % costs.train_shards, costs.epochs)
        clock.expect(0.0, UnitAdded(unit))
    for worker, at, back in outages:
        clock.expect(at, WorkerLost(worker))
        if back < _FOREVER:
            clock.expect(back, WorkerJoined(worker, held[worker]))
    clock.run()
    bound = costs.lower_bound(outages)
    return Simulation(clock.now, clock.busy, clock.decisions, bound, planner.finished)
