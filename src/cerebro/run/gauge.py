"""What a training step takes on one worker, and on all of them together: a few steps of each."""

from __future__ import annotations

from dataclasses import replace

from cerebro.backend.base import Backend, Done, Failed, Joined, Lost, Setup
from cerebro.data import Dataset
from cerebro.errors import WorkerError
from cerebro.run.parallel import StepCost
from cerebro.train.visit import VisitCall, VisitReport
from cerebro.types import Params, Split

#: Steps that warm up, and steps that count.
_WARM = 3
_STEPS = 12


def gauge(
    backend: Backend, setup: Setup, dataset: Dataset, *, params: Params, batch_size: int, seed: int
) -> StepCost | None:
    """Train a few steps alone, then as many together; None where a trial cannot be trained.

    Whatever is wrong with the trial is for its run to tell.
    """
    rows = dataset.shards(Split.TRAIN)[0].rows
    ranks = 1 if setup.gang is None else setup.gang.size
    call = VisitCall(
        unit=0,
        trials=(0,),
        params=(params,),
        seed=seed,
        epoch=0,
        step=0,
        steps=len(dataset.shards(Split.TRAIN)),
        split=Split.TRAIN,
        shard=0,
        attempt=0,
        batch_size=batch_size,
        verify=False,
    )
    try:
        backend.start(setup, 1)
        worker = _joined(backend)
        taken: list[VisitReport] = []
        for is_alone in (True, True, False, False):
            # The first of each kind warms up.
            steps = _STEPS if len(taken) % 2 else _WARM
            part = replace(call, limit=min(rows, steps * batch_size), is_alone=is_alone)
            done = _run(backend, worker, part)
            if done is None or done.state is None:
                return None
            state_bytes = done.state.bytes
            backend.release(done.state)
            taken.append(done.report)
    finally:
        backend.stop()
    alone, together = taken[1], taken[3]
    steps = -(-alone.rows // batch_size)
    return StepCost(
        alone_s=alone.compute_s / steps,
        together_s=(together.compute_s + together.comm_s) / steps,
        comm_s=together.comm_s / steps,
        workers=ranks,
        state_bytes=state_bytes,
    )


def _joined(backend: Backend) -> int:
    while True:
        for event in backend.events():
            if isinstance(event, Joined):
                return event.info.worker


def _run(backend: Backend, worker: int, call: VisitCall) -> Done | None:
    backend.submit(worker, call, None)
    while True:
        for event in backend.events():
            if isinstance(event, Done):
                return event
            if isinstance(event, Failed):
                return None
            if isinstance(event, Lost):
                raise WorkerError(f"a worker must live through a few steps, but it {event.cause}.")
