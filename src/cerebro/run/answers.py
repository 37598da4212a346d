"""Answers of workers, as the planner hears of them, and those that end the run."""

from __future__ import annotations

from cerebro import mop
from cerebro.backend.base import Done, Failed, FailureKind
from cerebro.errors import (
    CerebroError,
    CheckpointCorruptError,
    ReplicaError,
    ShardCorruptError,
    UsageError,
)
from cerebro.run.unit import LiveUnit
from cerebro.train.visit import VisitCall

_CAUSES = {
    FailureKind.DIVERGED: mop.Cause.DIVERGED,
    FailureKind.MEMORY: mop.Cause.MEMORY,
    FailureKind.LOST_STATE: mop.Cause.AGAIN,
}


def cause_of(event: Failed) -> mop.Cause:
    """What a failure counts as."""
    return _CAUSES.get(event.failure.kind, mop.Cause.ERROR)


def fatal_error(event: Failed, *, is_probing: bool) -> CerebroError | None:
    """The error that ends the run, if a failure must.

    Args:
        is_probing: No visit has told yet which metrics there are.
    """
    failure, call = event.failure, event.call
    if failure.kind is FailureKind.FATAL:
        is_drift = failure.error == ReplicaError.__name__
        return (ReplicaError if is_drift else ShardCorruptError)(failure.message)
    if not isinstance(call, VisitCall):
        return None
    if failure.kind is FailureKind.CORRUPT:
        return CheckpointCorruptError(failure.message)
    if call.probe and is_probing and failure.kind is FailureKind.USAGE:
        return UsageError(failure.message)
    return None


def visit_done(event: Done, live: LiveUnit, seconds: float) -> mop.VisitDone:
    """A visit was answered."""
    return mop.VisitDone(*_visit(event.call, live), event.worker, seconds)


def visit_failed(
    event: Failed, call: VisitCall, live: LiveUnit, cause: mop.Cause
) -> mop.VisitFailed:
    """A visit failed, and its worker lives."""
    is_diverged = cause is mop.Cause.DIVERGED
    signature = event.failure.message if is_diverged else event.failure.signature
    return mop.VisitFailed(*_visit(call, live), event.worker, cause, signature)


def _visit(call: VisitCall, live: LiveUnit) -> tuple[int, int, int, mop.Phase, int]:
    """The visit as the planner knows it, which counts attempts from 0 when a unit has gone back."""
    phase = mop.Phase.TRAIN if call.is_training else mop.Phase.EVAL
    return call.unit, call.epoch, call.step, phase, call.attempt - live.first_attempt
