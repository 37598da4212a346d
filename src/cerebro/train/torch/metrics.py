"""What a task's `metrics` gives, checked."""

from __future__ import annotations

from typing import Any

from torch import nn

from cerebro.errors import UsageError
from cerebro.task import Batch, Task
from cerebro.train.codec import plain_text
from cerebro.types import Params


def metrics_of(task: Task, model: nn.Module, batch: Batch, params: Params) -> dict[str, Any]:
    """The metrics of a batch by name."""
    found = task.metrics(model, batch, params)
    if not isinstance(found, dict):
        raise UsageError(
            f"{type(task).__name__}.metrics must return a dict of numbers by name, but "
            f"returned a {type(found).__name__}."
        )
    named = {plain_text(k) if isinstance(k, str) else str(k): v for k, v in found.items()}
    if "loss" in named:
        raise UsageError(
            f"{type(task).__name__}.metrics must leave the name 'loss' to the value of "
            "loss(), but gives a metric of that name: call it something else."
        )
    return named
