"""Exceptions of a visit as values that can travel."""

from __future__ import annotations

import traceback

from cerebro.backend.base import Failure, FailureKind
from cerebro.errors import CheckpointCorruptError, DataError, UsageError
from cerebro.train.visit import Diverged

_KINDS: tuple[tuple[type[BaseException], FailureKind], ...] = (
    (Diverged, FailureKind.DIVERGED),
    (CheckpointCorruptError, FailureKind.CORRUPT),
    (DataError, FailureKind.FATAL),
    (UsageError, FailureKind.USAGE),
)


def describe_failure(error: BaseException) -> Failure:
    """What went wrong, with a signature that two failures of one cause share."""
    kind = next((kind for cls, kind in _KINDS if isinstance(error, cls)), FailureKind.ERROR)
    name = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    place = f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "?"
    try:
        message = str(error)
    except Exception:
        message = "(its message cannot be shown)"
    return Failure(
        kind=kind,
        message=f"{name}: {message}" if kind is FailureKind.ERROR else message,
        traceback="".join(traceback.format_exception(error)),
        signature=f"{name}@{place}",
        error=name,
    )
