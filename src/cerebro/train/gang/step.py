"""One training step of a rank: its own part of the batch, gradients of all."""

from __future__ import annotations

import math
from typing import Any

from torch import Tensor

from cerebro.errors import TrialError
from cerebro.task import Batch, Task
from cerebro.train.gang.gradients import BucketMemory, GradientSync
from cerebro.train.gang.group import Gang
from cerebro.train.gang.parts import Shares
from cerebro.train.torch.state import Components
from cerebro.train.torch.step import TrainStep, split
from cerebro.train.visit import Diverged, VisitCall


class GangStep(TrainStep):
    """Trains on this rank's part of one batch after the other; all ranks make the same update.

    Every rank weighs its loss by its share of the batch's rows, so that the sum of all gradients is
    the gradient of the whole batch, for parts of any size.
    """

    def __init__(
        self,
        gang: Gang,
        task: Task,
        parts: Components,
        call: VisitCall,
        device: str,
        memory: BucketMemory,
    ) -> None:
        super().__init__(task, parts, call, device)
        self._gang = gang
        self._shares = Shares(call.batch_size, gang.size)
        if call.micro_batch is not None:
            # Of the whole batch, as it was cut when memory was not enough.
            self._size = -(-call.micro_batch // gang.size)
        self._sync = GradientSync(gang, self._trained, memory)

    @property
    def size(self) -> int | None:
        """The most rows that it takes at a time."""
        return self._size

    def __call__(self, batch: Batch, rows: int) -> Any:
        """The mean loss of a batch of so many rows, of which `batch` has this rank's own."""
        own = self._shares.count(rows, self._gang.rank)
        if own == 0:
            self._optimizer.zero_grad(set_to_none=True)
            self._sync.begin(0.0)
        elif self._size is None or own <= self._size:
            self._go_through([(batch, own)], 1, rows)
        else:
            count = -(-own // self._size)
            self._go_through(split(batch, own, self._size), count, rows)
        found = self._sync.finish()
        value: Any = float(found) if self._on_cpu else found.clone()
        if self._on_cpu:
            self._require_finite(value)
        self._update()
        self._number += 1
        return value

    def close(self) -> None:
        """Leave the parameters as they were found."""
        self._sync.close()

    def _go_through(self, parts: Any, count: int, rows: int) -> None:
        total: Any = None
        for place, (part, own) in enumerate(parts):
            loss = _require_number(self.loss(part)) * (own / rows)
            total = loss.detach() if total is None else total + loss.detach()
            if place == 0:
                self._optimizer.zero_grad(set_to_none=True)
            if place == count - 1:
                self._sync.begin(total)
            self._backward(loss)

    def _require_finite(self, value: float) -> None:
        if not math.isfinite(value):
            raise Diverged(f"loss is {value} at step {self._number} of the visit")


def _require_number(loss: Tensor) -> Tensor:
    if loss.numel() != 1:
        raise TrialError(f"loss must be one number, but has the shape {list(loss.shape)}.")
    return loss
