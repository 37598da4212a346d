"""What can be told to be wrong only once the first visit is done."""

from __future__ import annotations

from cerebro.errors import DiskFullError, UsageError
from cerebro.run.spec import RunSpec
from cerebro.storage import Store

#: Two of a trial are kept while a third is written.
_CHECKPOINTS_PER_TRIAL = 3


def check_metric(spec: RunSpec, names: tuple[str, ...]) -> None:
    """Refuse to rank by a metric that the task does not give."""
    known = ["train_loss", *(f"val_{name}" for name in names if spec.val_shards)]
    if spec.metric not in known:
        raise UsageError(
            f"the metric must be one that this task gives, but got {spec.metric!r}. "
            f"Known: {', '.join(known)}."
        )


def check_space(store: Store, *, trials: int, state_bytes: int) -> None:
    """Refuse a run whose checkpoints cannot fit."""
    needed, free = _CHECKPOINTS_PER_TRIAL * trials * state_bytes, store.free_bytes()
    if needed > free:
        raise DiskFullError(
            f"checkpoints of this run need up to {needed} bytes, but {free} are free in "
            f"{store.url}. Free some space, or use checkpoint='off', then run the same command "
            "again."
        )
