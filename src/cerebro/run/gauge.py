"""What a training step takes on one worker, and on all of them together: a few steps of each."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import cast

from cerebro.backend.base import (
    Answered,
    Backend,
    Done,
    Event,
    Failed,
    Job,
    Joined,
    Lost,
    Posted,
    Setup,
    StateRef,
)
from cerebro.data import Dataset
from cerebro.errors import RunInterrupted
from cerebro.run.parallel import StepCost
from cerebro.run.signals import Broken, StopRequested, StopSignals, Woken, interrupted
from cerebro.run.spec import RunSpec
from cerebro.run.surveyor import composed, survey_call
from cerebro.train.visit import Stacking, Survey, VisitCall, VisitReport
from cerebro.types import Params, Split, stack_unit

#: Steps that warm up, and steps that count.
_WARM = 3
_STEPS = 12


class _Cannot(Exception):
    """The trial cannot be trained; why, its run will tell."""


def gauge(
    backend: Backend,
    setup: Setup,
    dataset: Dataset,
    *,
    alone: RunSpec,
    together: RunSpec,
    params: Params,
) -> StepCost | None:
    """Train a few steps as each of two runs would; None where the trial cannot be trained.

    Args:
        setup: Of the second run, whose gang has a leader that can also train alone.
        alone: The run in which one worker trains the trial, as a stack of one where that pays.
        together: The run in which all of them do.
        params: Of the trial.
    """
    with _stoppable(backend):
        try:
            backend.start(setup, 1)
            probe = _Probe(backend, _joined(backend), dataset, params)
            single = probe.measure(alone, stack=probe.choose_stack(alone), is_alone=True)
            shared = probe.measure(together)
            send_s, state_bytes = probe.measure_sending(together)
        except _Cannot:
            return None
        finally:
            backend.stop()
    return StepCost(
        alone_s=single.seconds,
        together_s=shared.seconds,
        comm_s=shared.comm_s,
        workers=1 if setup.gang is None else setup.gang.size,
        state_bytes=state_bytes,
        send_s=send_s,
        visit_steps=-(-probe.shard_rows // shared.rows),
        alone_rows=single.rows,
        rows=shared.rows,
    )


@contextlib.contextmanager
def _stoppable(backend: Backend) -> Iterator[None]:
    """A signal ends what is in here, or else what would come after it."""
    stops: list[int] = []

    def stop(number: int) -> None:
        stops.append(number)
        backend.post(StopRequested(number))

    with StopSignals(stop, lambda: backend.post(Woken())):
        yield
    if stops:
        raise _interrupted(stops[0])


@dataclass(frozen=True, slots=True)
class _Step:
    """What one took, and for how much of that its workers waited for each other."""

    seconds: float
    comm_s: float
    rows: int


@dataclass(frozen=True, slots=True)
class _Probe:
    """A worker that tries things out."""

    backend: Backend
    worker: int
    dataset: Dataset
    params: Params

    @property
    def shard_rows(self) -> int:
        """Of the shard on which steps are tried."""
        return self.dataset.shards(Split.TRAIN)[0].rows

    def choose_stack(self, spec: RunSpec) -> Stacking | None:
        """How a trial alone is trained in such a run: as a stack of one, or in the plain loop."""
        if spec.stack is False:
            return None
        call = survey_call(spec, {0: self.params})
        answer = self._run(call, None)
        if not isinstance(answer, Answered):
            return None
        found = composed(spec, call, cast(Survey, answer.answer), workers=1).stacks
        return found[0][1] if found else None

    def measure(
        self, spec: RunSpec, *, stack: Stacking | None = None, is_alone: bool = False
    ) -> _Step:
        """Some steps, all of as many rows, after a few others that warm up."""
        # A batch takes the rows of one shard.
        rows = min(spec.batch_size_of(self.params), self.shard_rows)
        most = self.shard_rows // rows
        call = replace(self._call(spec), stack=stack, is_alone=is_alone)
        if stack is not None:
            call = replace(call, unit=stack_unit(0))
        for asked in (_WARM, _STEPS):
            steps = min(asked, most)
            report, state = self._train(replace(call, limit=steps * rows), None)
            self.backend.release(state)
        seconds = report.compute_s + report.comm_s
        return _Step(seconds=seconds / steps, comm_s=report.comm_s / steps, rows=rows)

    def measure_sending(self, spec: RunSpec) -> tuple[float, int]:
        """Seconds that it takes to send a state to all workers, and its bytes."""
        call = self._call(spec)
        call = replace(call, limit=call.batch_size)
        _, state = self._train(call, None)
        try:
            report, after = self._train(call, state)
            self.backend.release(after)
        finally:
            self.backend.release(state)
        return report.send_s, state.bytes

    def _call(self, spec: RunSpec) -> VisitCall:
        return VisitCall(
            unit=0,
            trials=(0,),
            params=(self.params,),
            seed=spec.seed,
            epoch=0,
            step=0,
            # None is the last of its epoch: that is not what is measured.
            steps=1 + len(self.dataset.shards(Split.TRAIN)),
            split=Split.TRAIN,
            shard=0,
            attempt=0,
            batch_size=spec.batch_size_of(self.params),
            verify=False,
            same_order=spec.same_order,
        )

    def _train(self, call: VisitCall, source: StateRef | None) -> tuple[VisitReport, StateRef]:
        done = self._run(call, source)
        if not isinstance(done, Done) or done.state is None:
            raise _Cannot
        return done.report, done.state

    def _run(self, call: VisitCall | Job, source: StateRef | None) -> Done | Answered | Failed:
        self.backend.submit(self.worker, call, source)
        while True:
            for event in _heard(self.backend):
                # Of what kills its worker, or the GPU of it, no more is tried here.
                if isinstance(event, Lost):
                    raise _Cannot
                if isinstance(event, Failed) and event.failure.is_spent:
                    raise _Cannot
                if isinstance(event, Done | Answered | Failed):
                    return event


def _heard(backend: Backend) -> list[Event]:
    """What comes next; raises if the run is to end before it has begun."""
    found = list(backend.events())
    for event in found:
        if isinstance(event, Posted):
            if isinstance(event.payload, Broken):
                raise event.payload.error
            if isinstance(event.payload, StopRequested):
                raise _interrupted(event.payload.number)
    return found


def _interrupted(number: int) -> RunInterrupted:
    return interrupted(number, "stopped before the first visit.")


def _joined(backend: Backend) -> int:
    while True:
        for event in _heard(backend):
            if isinstance(event, Joined):
                return event.info.worker
