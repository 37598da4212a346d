"""What can be told to be wrong only once the first visit is done."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cerebro.errors import DiskFullError, UsageError
from cerebro.run.history import KEPT, RunHistory
from cerebro.run.spec import RunSpec
from cerebro.search.stoppers import STOPPERS
from cerebro.storage import Store
from cerebro.train.visit import VisitReport
from cerebro.types import Json, Params

#: Two of a trial are kept while a third is written.
_CHECKPOINTS_PER_TRIAL = 3
#: So many of a stack are, while one more is.
_CHECKPOINTS_PER_STACK = KEPT + 1


def check_metric(spec: RunSpec, report: VisitReport) -> None:
    """Refuse to go by what the task does not give, as a first visit has found."""
    # A member of a stack that diverged at once gives nothing.
    sums = next((member.sums for member in report.members if member.sums), {})
    trained = report.train_names or sums
    known = [f"train_{name}" for name in trained]
    if spec.val_shards:
        known += [f"val_{name}" for name in report.metric_names]
        if not report.metric_names:
            raise UsageError(
                "a task must give metrics on validation data, but this one has no val_test. Write "
                "it, or prepare data without validation."
            )
    for what, metric in metrics_by(spec):
        if metric not in known:
            raise UsageError(
                f"the {what} must be one that this task gives, but got {metric!r}. "
                f"Known: {', '.join(known)}."
            )


def metrics_by(spec: RunSpec) -> Iterator[tuple[str, str]]:
    """The metrics that a run goes by, each with what it is there for."""
    for what, metric in (
        ("metric", spec.metric),
        *(("metric", metric) for metric, _ in spec.objectives),
        *(("metric of a constraint", metric) for metric in spec.constraints),
        ("metric of the goal", spec.goal.get("metric")),
        *_of_stoppers(spec.stopper),
    ):
        if metric is not None:
            yield what, str(metric)


def _of_stoppers(stopper: Mapping[str, Any]) -> Iterator[tuple[str, Json]]:
    """What a stopper, and each of its parts, goes by; words of a user's own are not ours."""
    if stopper.get("name") in STOPPERS:
        yield f"metric of stopper {stopper.get('name')!r}", stopper.get("metric")
    for part in stopper.get("stoppers", []):
        yield from _of_stoppers(part)


def check_space(store: Store, spec: RunSpec, history: RunHistory, *, state_bytes: int) -> None:
    """Refuse a run whose checkpoints cannot fit, with so many bytes for a trial's state."""
    states = 0
    for trial in history.trials.values():
        if not trial.status.is_final:
            in_stack = min(_CHECKPOINTS_PER_STACK, spec.epochs * spec.train_shards)
            states += _CHECKPOINTS_PER_TRIAL if trial.stack is None else in_stack
    needed, free = states * state_bytes, store.free_bytes()
    if needed > free:
        raise DiskFullError(
            f"checkpoints of this run need up to {needed} bytes, but {free} are free in "
            f"{store.url}. Free some space, or use checkpoint='off', then run the same command "
            "again."
        )


def is_batch_size(spec: RunSpec, params: Params) -> bool:
    """Whether a trial has one that it can be trained with."""
    try:
        check_batch_size(spec, params)
    except UsageError:
        return False
    return True


def check_batch_size(spec: RunSpec, params: Params) -> None:
    """Refuse params whose batch size is none."""
    own = [name for name in ("global_batch_size", "batch_size") if name in params]
    if len(own) > 1:
        raise UsageError(
            "a trial has a batch_size or a global_batch_size, but the space gives it both."
        )
    value = params[own[0]] if own else spec.global_batch_size or spec.batch_size
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise UsageError(
            f"batch_size must be an integer of at least 1, but the space gives {value!r}."
        )
