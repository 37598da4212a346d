"""Exceptions of a visit as values that can travel."""

from __future__ import annotations

import sys
import traceback
from dataclasses import replace
from typing import Any

from cerebro.backend.base import Failure, FailureKind
from cerebro.backend.gang.ends import RankFailed
from cerebro.errors import (
    CheckpointCorruptError,
    DataError,
    ReplicaError,
    StateLostError,
    UsageError,
)
from cerebro.train.memory import explain_memory, host_memory
from cerebro.train.visit import Diverged, OutOfMemory

_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (Diverged, FailureKind.DIVERGED),
    (OutOfMemory, FailureKind.MEMORY),
    (MemoryError, FailureKind.MEMORY),
    (CheckpointCorruptError, FailureKind.CORRUPT),
    (StateLostError, FailureKind.LOST_STATE),
    (DataError, FailureKind.FATAL),
    (ReplicaError, FailureKind.FATAL),
    (UsageError, FailureKind.USAGE),
)
#: The class of errors that PyTorch raises for what went wrong on a GPU, since 2.8.
_OF_A_GPU = "AcceleratorError"
_HINT = "Use fewer workers, or a smaller batch_size or model."


def describe_failure(error: BaseException) -> Failure:
    """What went wrong, with a signature that two failures of one cause share."""
    if isinstance(error, RankFailed):
        return error.failure
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.ERROR)
    is_translated = isinstance(error, OutOfMemory) and error.__cause__ is not None
    origin = error.__cause__ if is_translated and error.__cause__ else error
    name = type(origin).__name__
    frames = traceback.extract_tb(origin.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    if isinstance(error, MemoryError):
        message = explain_memory(host_memory(), error, _HINT)
    return Failure(
        kind=kind,
        message=f"{name}: {message}" if kind is FailureKind.ERROR else message,
        traceback="".join(traceback.format_exception(error)),
        signature=f"{name}@{place}",
        error=name,
        is_splittable=isinstance(error, OutOfMemory) and error.is_splittable,
    )


def own_failure(error: BaseException) -> Failure:
    """What went wrong in this process: if its GPU has failed, that, however it was told.

    Libraries under PyTorch have other words for it, which are not those of an error of the GPU.
    """
    failure = describe_failure(error)
    # What befell another rank says nothing about this one.
    is_own = failure.kind is FailureKind.ERROR and not isinstance(error, RankFailed)
    if is_own and failure.error == _OF_A_GPU:
        return replace(failure, is_spent=True)
    torch: Any = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        try:
            torch.cuda.current_stream().query()
        except RuntimeError as failed:
            return replace(describe_failure(failed), is_spent=True)
    return failure
