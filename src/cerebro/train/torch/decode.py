"""`Task.decode`: what columns of bytes and text become before anything else sees them."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.train.torch.device import Rows


class Decoder:
    """Calls a task's `decode` on one batch after another.

    Batches with columns of bytes or text are decoded where they are read, and then moved to the
    device; others are decoded there.
    """

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self._device = device

    @classmethod
    def of(cls, task: Task, device: torch.device) -> Decoder | None:
        """One for this task; None if it decodes nothing."""
        return cls(task, device) if task.has("decode") else None

    def is_due_on_host(self, shard: Shard) -> bool:
        """Whether batches of this shard are decoded before they are moved."""
        return any(not isinstance(column, np.ndarray) for column in shard.columns.values())

    def __call__(self, batch: Rows) -> Rows:
        decoded: Any = self._task.decode(batch[0])
        if not isinstance(decoded, dict):
            raise UsageError(
                f"{type(self._task).__name__}.decode must return the batch, a dict of columns, but "
                f"returned a {type(decoded).__name__}."
            )
        if self._device.type == "cpu":
            return decoded, batch[1]
        moved = {k: v.to(self._device) if isinstance(v, Tensor) else v for k, v in decoded.items()}
        return moved, batch[1]
