"""What every backend does around a visit: who the worker is, where its state goes."""

from __future__ import annotations

import os
import socket

from cerebro.backend.base import Runner, SaveRequest, StateRef, WorkerInfo
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import save as save_checkpoint


def introduce(worker: int, runner: Runner) -> WorkerInfo:
    """A worker of this process that is ready."""
    name, digest = runner.describe()
    return WorkerInfo(
        worker=worker,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=runner.device,
        versions=runner.versions(),
        task_name=name,
        task_digest=digest,
    )


def save_state(data: memoryview, state: StateRef, request: SaveRequest) -> CheckpointRef:
    """Commit a state whose bytes are at hand."""
    return save_checkpoint(
        request.store,
        request.unit,
        visits=request.visits,
        attempt=request.attempt,
        data=data,
        meta=state.meta,
        parent=request.parent,
    )
