"""What a training step takes on one worker, and on all of them together: a few steps of each."""

from __future__ import annotations

from dataclasses import dataclass, replace

from cerebro.backend.base import Answered, Backend, Done, Failed, Job, Joined, Lost, Setup, StateRef
from cerebro.data import Dataset
from cerebro.errors import WorkerError
from cerebro.run.parallel import StepCost
from cerebro.run.spec import RunSpec
from cerebro.run.stacks import compose
from cerebro.train.visit import Stacking, Survey, SurveyCall, VisitCall, VisitReport
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
    try:
        backend.start(setup, 1)
        probe = _Probe(backend, _joined(backend), dataset, params)
        single, _ = probe.measure(alone, stack=probe.choose_stack(alone), is_alone=True)
        shared, state_bytes = probe.measure(together)
    except _Cannot:
        return None
    finally:
        backend.stop()
    alone_rows, rows = alone.batch_size_of(params), together.batch_size_of(params)
    steps = -(-shared.rows // rows)
    return StepCost(
        alone_s=_seconds(single) / -(-single.rows // alone_rows),
        together_s=_seconds(shared) / steps,
        comm_s=shared.comm_s / steps,
        workers=1 if setup.gang is None else setup.gang.size,
        state_bytes=state_bytes,
        send_s=shared.send_s,
        visit_steps=-(-dataset.shards(Split.TRAIN)[0].rows // rows),
        alone_rows=alone_rows,
        rows=rows,
    )


def _seconds(report: VisitReport) -> float:
    return report.compute_s + report.comm_s


@dataclass(frozen=True, slots=True)
class _Probe:
    """A worker that tries things out."""

    backend: Backend
    worker: int
    dataset: Dataset
    params: Params

    def choose_stack(self, spec: RunSpec) -> Stacking | None:
        """How a trial alone is trained in such a run: as a stack of one, or in the plain loop."""
        if spec.stack is False:
            return None
        size = spec.batch_size_of(self.params)
        call = SurveyCall(
            trials=(0,),
            params=(self.params,),
            batch_sizes=(size,),
            seed=spec.seed,
            same_order=spec.same_order,
        )
        answer = self._run(call, None)
        if not isinstance(answer, Answered) or not isinstance(answer.answer, Survey):
            return None
        rows = sum(shard.rows for shard in self.dataset.shards(Split.TRAIN))
        steps = {0: spec.epochs * -(-rows // size)}
        found = compose(answer.answer, spec.stack, workers=1, steps=steps).stacks
        return found[0][1] if found else None

    def measure(
        self, spec: RunSpec, *, stack: Stacking | None = None, is_alone: bool = False
    ) -> tuple[VisitReport, int]:
        """Some steps from the state that a few others have left, and the bytes of that."""
        shards = self.dataset.shards(Split.TRAIN)
        size = spec.batch_size_of(self.params)
        call = VisitCall(
            unit=0 if stack is None else stack_unit(0),
            trials=(0,),
            params=(self.params,),
            seed=spec.seed,
            epoch=0,
            step=0,
            steps=len(shards),
            split=Split.TRAIN,
            shard=0,
            attempt=0,
            batch_size=size,
            verify=False,
            stack=stack,
            same_order=spec.same_order,
            limit=min(shards[0].rows, _WARM * size),
            is_alone=is_alone,
        )
        _, state = self._train(call, None)
        try:
            limit = min(shards[0].rows, _STEPS * size)
            report, after = self._train(replace(call, epoch=1, limit=limit), state)
            self.backend.release(after)
        finally:
            self.backend.release(state)
        return report, state.bytes

    def _train(self, call: VisitCall, source: StateRef | None) -> tuple[VisitReport, StateRef]:
        done = self._run(call, source)
        if not isinstance(done, Done) or done.state is None:
            raise _Cannot
        return done.report, done.state

    def _run(self, call: VisitCall | Job, source: StateRef | None) -> Done | Answered | Failed:
        self.backend.submit(self.worker, call, source)
        while True:
            for event in self.backend.events():
                if isinstance(event, Done | Answered | Failed):
                    return event
                if isinstance(event, Lost):
                    raise WorkerError(
                        f"a worker must live through a few steps, but it {event.cause}."
                    )


def _joined(backend: Backend) -> int:
    while True:
        for event in backend.events():
            if isinstance(event, Joined):
                return event.info.worker
