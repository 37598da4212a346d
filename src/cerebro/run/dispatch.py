"""Turns the plan's starts into calls on workers."""

from __future__ import annotations

from typing import NamedTuple

from cerebro import mop
from cerebro.backend.base import Backend, Source
from cerebro.run.reporter import Reporter
from cerebro.run.spec import RunSpec
from cerebro.run.states import States
from cerebro.run.unit import LiveUnit
from cerebro.run.verifier import Verifier
from cerebro.train.visit import VisitCall
from cerebro.types import Split


class _Flight(NamedTuple):
    """A visit that a worker has."""

    unit: int
    source: Source
    started: float


class Dispatcher:
    """Hands visits to workers, and knows what each of them has."""

    def __init__(
        self, spec: RunSpec, backend: Backend, states: States, reporter: Reporter, *, probe: bool
    ) -> None:
        self._spec = spec
        self._backend = backend
        self._states = states
        self._reporter = reporter
        self._in_flight: dict[int, _Flight] = {}
        self.verifier: Verifier | None = None
        #: The next training visit tells which metrics there are.
        self.is_probing = probe

    def __len__(self) -> int:
        """Visits in flight."""
        return len(self._in_flight)

    def start(self, start: mop.Start, live: LiveUnit, *, after_save: bool) -> None:
        """Hand a visit to its worker."""
        spec, visit = self._spec, start.visit
        params = tuple([live.params[trial] for trial in start.trials])
        is_training = visit.phase is mop.Phase.TRAIN
        held_out = spec.held_out(live.fold or 0)
        split, shard = self._place(visit, held_out)
        call = VisitCall(
            unit=visit.unit,
            trials=start.trials,
            params=params,
            seed=spec.seed,
            epoch=visit.epoch,
            step=visit.step,
            steps=spec.train_shards,
            split=split,
            shard=shard,
            held_out=held_out,
            verify=not (self.verifier and self.verifier.has_checked(split, shard)),
            attempt=live.attempt_at(visit.attempt),
            batch_size=spec.batch_size_of(params[0]),
            probe=is_training and self.is_probing,
            stack=live.stacking,
            same_order=spec.same_order,
            micro_batch=live.micro_batch,
            origin=live.origin_at(visit.epoch * spec.train_shards + visit.step),
        )
        worker, unit = start.workers[0], visit.unit
        source = self._states.source(unit)
        consume = is_training and self._states.hand_over(unit)
        held = None if consume else source
        self._states.hold(held)
        self._in_flight[worker] = _Flight(unit, held, self._reporter.now())
        self._backend.submit(worker, call, source, consume=consume)
        self._reporter.started(call, worker, live.alive, after_save=after_save)

    def _place(self, visit: mop.Visit, held_out: tuple[int, int]) -> tuple[Split, int]:
        """Where the shard of a visit is; of folds each holds out another run of train shards."""
        first, end = held_out
        if visit.phase is mop.Phase.TRAIN:
            return Split.TRAIN, visit.shard + (end - first if visit.shard >= first else 0)
        return (Split.TRAIN, first + visit.shard) if end else (Split.VAL, visit.shard)

    def take(self, worker: int) -> tuple[Source, float]:
        """A worker is through: the state its visit read, to be dropped, and when it started."""
        flight = self._in_flight.pop(worker)
        return flight.source, flight.started

    @property
    def units(self) -> set[int]:
        """Units of which some worker has a visit."""
        return {flight.unit for flight in self._in_flight.values()}

    def is_busy(self, unit: int) -> bool:
        """Whether any worker has a visit of this unit."""
        return unit in self.units
