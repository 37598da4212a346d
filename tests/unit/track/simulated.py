"""The records of a run on a simulated clock, through the real planner."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush

from cerebro import mop
from cerebro.track.records import (
    EpochFinished,
    MemberVisit,
    Record,
    RunStarted,
    TrialAdded,
    TrialFinished,
    VisitFinished,
    VisitStarted,
)
from cerebro.types import Mode, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedRun:
    """A run whose visits take what is written here; `seconds` has one entry for each unit."""

    seconds: Sequence[float]
    #: Trials in each unit; one each where it is left out.
    sizes: Sequence[int] = ()
    workers: int = 2
    epochs: int = 5
    train_shards: int = 8
    val_shards: int = 2
    eval_share: float = 0.3
    #: How much longer the first visit of a unit takes.
    warm_up: float = 1.0
    #: Visits vary by about this part.
    noise: float = 0.0
    #: Between two visits of a worker.
    gap_s: float = 0.0
    #: Before the first visit.
    startup_s: float = 3.0
    run: dict[str, object] = field(default_factory=dict)

    def units(self) -> list[tuple[int, ...]]:
        sizes = self.sizes or [1] * len(self.seconds)
        ends = [sum(sizes[: index + 1]) for index in range(len(sizes))]
        return [tuple(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]

    def started(self) -> RunStarted:
        return RunStarted(
            run="simulated",
            workers=self.workers,
            trials=sum(map(len, self.units())),
            epochs=self.epochs,
            train_shards=self.train_shards,
            val_shards=self.val_shards,
            metric="val_loss",
            mode=Mode.MIN,
            **self.run,  # type: ignore[arg-type]
        )

    def records(self) -> Iterator[tuple[float, Record]]:
        """Every record with the time at which it is sent."""
        yield 0.0, self.started()
        for trials in self.units():
            for trial in trials:
                yield 0.0, TrialAdded(trial=trial, params={})
        yield from _Clock(self).run()


class _Clock:
    """Workers as the planner sees them."""

    def __init__(self, simulated: SimulatedRun) -> None:
        self._simulated = simulated
        self._units = simulated.units()
        self._rng = random.Random(0)
        self._planner = mop.Planner(simulated.train_shards, simulated.val_shards, max_lag=None)
        self._events: list[tuple[float, int, mop.Event]] = []
        self._count = 0
        self._begun: dict[int, VisitStarted] = {}

    def run(self) -> Iterator[tuple[float, Record]]:
        run = self._simulated
        for number, trials in enumerate(self._units):
            unit = mop.Unit(number, trials, number, run.epochs)
            self._expect(run.startup_s, mop.UnitAdded(unit))
        for worker in range(run.workers):
            self._expect(run.startup_s, mop.WorkerJoined(worker))
        while self._events:
            now, _, event = heappop(self._events)
            if isinstance(event, mop.VisitDone):
                yield now, _finished(self._begun.pop(event.worker), now)
            for instruction in self._planner.handle(event):
                for record in self._records(instruction, now):
                    yield now, record

    def _expect(self, when: float, event: mop.Event) -> None:
        self._count += 1
        heappush(self._events, (when, self._count, event))

    def _records(self, instruction: mop.Instruction, now: float) -> Iterator[Record]:
        if isinstance(instruction, mop.Start):
            yield self._start(instruction, now + self._simulated.gap_s)
        elif isinstance(instruction, mop.EpochEnded):
            for trial in self._units[instruction.unit]:
                yield EpochFinished(trial=trial, epoch=instruction.epoch, metrics={}, seconds=1.0)
        elif isinstance(instruction, mop.UnitFinished):
            for trial in self._units[instruction.unit]:
                yield TrialFinished(trial=trial, status=TrialStatus.FINISHED)

    def _start(self, instruction: mop.Start, now: float) -> VisitStarted:
        visit, _, (worker,) = instruction
        seconds = self._cost_s(visit)
        answer = (visit.unit, visit.epoch, visit.step, visit.phase, visit.attempt)
        self._expect(now + seconds, mop.VisitDone(*answer, worker, seconds))
        start = self._begun[worker] = VisitStarted(
            trials=self._units[visit.unit],
            epoch=visit.epoch,
            step=visit.step,
            phase=str(visit.phase.value),
            shard=visit.shard,
            worker=worker,
            time_s=now,
        )
        return start

    def _cost_s(self, visit: mop.Visit) -> float:
        run = self._simulated
        seconds = run.seconds[visit.unit] * self._rng.uniform(1 - run.noise, 1 + run.noise)
        if visit.phase is mop.Phase.EVAL:
            return seconds * run.eval_share
        return seconds * (run.warm_up if visit.epoch == visit.step == 0 else 1.0)


def _finished(start: VisitStarted, now: float) -> VisitFinished:
    return VisitFinished(
        trials=start.trials,
        epoch=start.epoch,
        step=start.step,
        phase=start.phase,
        shard=start.shard,
        worker=start.worker,
        start_s=start.time_s,
        end_s=now,
        compute_s=now - start.time_s,
        data_s=0.0,
        hop_s=0.0,
        rows=1,
        members=tuple(MemberVisit() for _ in start.trials),
    )
