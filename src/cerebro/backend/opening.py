"""What every backend does around a visit: who the worker is, where a state comes from and goes."""

from __future__ import annotations

import os
import socket

from cerebro.backend.base import SaveRequest, StateRef, WorkerInfo
from cerebro.storage import open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import load as load_checkpoint
from cerebro.storage.checkpoint import save as save_checkpoint
from cerebro.train.runner import VisitRunner, describe_task
from cerebro.train.visit import State


def introduce(worker: int, runner: VisitRunner) -> WorkerInfo:
    """A worker of this process that is ready."""
    name, digest = describe_task(runner.task)
    return WorkerInfo(
        worker=worker,
        pid=os.getpid(),
        host=socket.gethostname(),
        device=runner.framework.device,
        versions=runner.framework.versions(),
        task_name=name,
        task_digest=digest,
    )


def load_state(store: str, ref: CheckpointRef) -> State:
    """The state that a checkpoint holds."""
    found = load_checkpoint(open_store(store), ref, into=bytearray)
    return State(memoryview(found.data), found.meta)


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
