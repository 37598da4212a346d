"""What every backend does around a visit: who the worker is, where its state goes."""

from __future__ import annotations

import os
import socket
from typing import Any, cast

import cloudpickle

from cerebro.backend.base import (
    Failure,
    FailureKind,
    Opening,
    Runner,
    SaveRequest,
    StateRef,
    WorkerInfo,
)
from cerebro.errors import DataError, UsageError, WorkerError
from cerebro.storage import Store, open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import save as save_checkpoint

#: What workers on other machines do as the driver does, unless these are set up otherwise.
_TRAVELLING = ("KERAS_BACKEND",)


def pack(setup: Opening) -> bytes:
    """An opening as bytes that travel, with all that the user's script defines."""
    try:
        return cast(bytes, cloudpickle.dumps(setup))
    except Exception as error:
        raise UsageError(
            f"the task must be able to travel to a worker process, but {setup.task!r} cannot be "
            f"pickled: {type(error).__name__}: {error}. Open files, locks and the like where they "
            "are used instead of keeping them in the task."
        ) from error


def store_of(opening: Opening) -> Store | None:
    """Where workers with this opening write."""
    found: Any = getattr(opening, "store", None) or getattr(opening, "out", None)
    return open_store(found) if isinstance(found, str) else found


def travelling_environment() -> dict[str, str]:
    """Variables that decide what workers compute, wherever they are."""
    return {name: os.environ[name] for name in _TRAVELLING if name in os.environ}


def cannot_start(failure: Failure) -> Exception:
    """What ends a run whose first worker could not open what it was given."""
    if failure.kind is FailureKind.USAGE:
        return UsageError(failure.message)
    if failure.kind is FailureKind.FATAL:
        return DataError(failure.message)
    return WorkerError(f"a worker cannot start: {failure.message}\n{failure.traceback}")


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
