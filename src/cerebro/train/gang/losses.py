"""Whether the losses of the ranks' parts are the loss of the batch."""

from __future__ import annotations

import contextlib
import math
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro.data import Shard
from cerebro.errors import ReplicaError
from cerebro.task import Batch, Task
from cerebro.train.gang.group import Gang
from cerebro.train.gang.parts import Shares
from cerebro.train.gang.step import GangStep
from cerebro.train.meter import Meter
from cerebro.train.told import told
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.build import seed_everything
from cerebro.train.torch.step import scalar, split

#: By how much sums in another order may differ; the second of rough numbers.
_EXACT, _ROUGH = 1e-4, 2e-2
_SMALLEST = 1e-6
#: Seeds of two looks at one loss: it must not depend on them.
_SEEDS = (1, 2)


class LossCheck:
    """Compares the loss of a batch on rank 0 with those that the ranks have for their parts of it.

    Without gradients and in eval mode, before augmentation; nothing of it is left in the model or
    in the generators. Rank 0 looks at no more than twice the rows that it trains on.

    Args:
        visit: Which one this is, as errors call it.
        is_rough: Numbers have few bits, or kernels may use such numbers.
    """

    def __init__(
        self,
        gang: Gang,
        task: Task,
        model: nn.Module,
        step: GangStep,
        device: str,
        *,
        visit: str,
        is_rough: bool,
    ) -> None:
        self._gang = gang
        self._task = task
        self._model = model
        self._step = step
        self._device = device
        self._visit = visit
        self._tolerance = _ROUGH if is_rough else _EXACT

    def begin(
        self, shard: Shard, batches: TorchBatches, index: Any, shares: Shares, number: int
    ) -> None:
        """Before the part is loaded: rank 0 looks at the rows `index` of all ranks."""
        self._shard, self._batches, self._number = shard, batches, number
        bounds = [shares.part(len(index), rank) for rank in range(self._gang.size)]
        room = self._room(bounds[0][1])
        #: The rows of each rank that are looked at.
        self._looked = [index[first : min(last, first + room)] for first, last in bounds]
        self._whole = math.nan
        if self._gang.rank == 0:
            self._whole = self._loss_of(np.concatenate(self._looked))

    def finish(self, batch: Batch, own: int) -> None:
        """Compare, with this rank's own part; raises on all ranks or on none."""
        gang = self._gang
        looked = len(self._looked[gang.rank])
        if 0 < looked < own:
            batch, _ = next(split(batch, own, looked))
        loss = self._look(batch) if looked else 0.0
        row = torch.tensor([loss, looked, self._whole], dtype=torch.float64)
        losses, counts, wholes = gang.gather(row).T.tolist()
        mean = sum(a * b for a, b in zip(losses, counts, strict=True)) / sum(counts)
        # Large parts may cancel: what is left of them is as exact as they are.
        self._scale: float = max(abs(loss) for loss in (*losses, wholes[0]))
        if self._agree(mean, wholes[0]):
            return
        # Whether the same rows give the same loss twice.
        other = self._look(batch, _SEEDS[1]) if looked else 0.0
        is_steady = gang.gather(torch.tensor([int(other == loss)]))
        if not bool(is_steady.all()):
            return
        found = self._explain(losses, mean) if gang.rank == 0 else None
        raise ReplicaError(str(gang.gather_json(found)[0]))

    def _explain(self, losses: list[float], mean: float) -> str:
        """What is wrong, told by rank 0, which has seen all."""
        where = f"at step {self._number} of {self._visit}"
        for rank, rows in enumerate(self._looked):
            own = self._loss_of(rows) if len(rows) else losses[rank]
            if not self._agree(losses[rank], own):
                return (
                    f"the ranks of a gang must give the same loss for the same rows, but {where} "
                    f"rank {rank} has {losses[rank]:.6g} for {len(rows)} rows that have {own:.6g} "
                    "on rank 0. Labels must belong to their rows, and all that the loss depends on "
                    "must be in the model: not in modules, tensors or counters that the task keeps "
                    "beside it."
                )
        return (
            f"the loss of a batch must be the mean of the losses of its rows in a gang, but "
            f"{where} it is {self._whole:.6g} for all rows that the ranks look at, on rank 0, and "
            f"{mean:.6g} in the mean over the parts of ranks 0 to {self._gang.size - 1}. Labels "
            "must belong to their rows, and a loss must not add up or compare rows of a batch. For "
            "such a loss, train each trial on one worker, or turn this check off "
            "(check_every=0)."
        )

    def _agree(self, one: float, other: float) -> bool:
        if not (math.isfinite(one) and math.isfinite(other)):
            # It diverges, or cannot be computed without augmentation.
            return True
        return abs(one - other) <= self._tolerance * self._scale + _SMALLEST

    def _room(self, own: int) -> int:
        """The most rows of each rank that are looked at."""
        at_a_time = own if self._step.size is None else min(own, self._step.size)
        return max(1, -(-2 * at_a_time // self._gang.size))

    def _loss_of(self, rows: Any) -> float:
        batch, _ = next(self._batches.uncounted(self._shard, len(rows), rows))
        return self._look(batch)

    def _look(self, batch: Batch, seed: int = _SEEDS[0]) -> float:
        try:
            with _untouched(self._task, self._model, self._device, seed):
                return scalar(self._step.loss(dict(batch)))
        except Exception:
            if not self._task.has("augment"):
                raise
            return math.nan


@contextlib.contextmanager
def _untouched(task: Task, model: nn.Module, device: str, seed: int) -> Iterator[None]:
    """Eval mode without gradients; modes, generators and meter are afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    on_device = torch.cuda.get_rng_state() if device == "cuda" else None
    seed_everything(seed)
    model.eval()
    try:
        # Rows that are looked at are not trained on; a task may take it for granted that there is
        # a meter.
        with torch.no_grad(), told(task, "meter", Meter()):
            yield
    finally:
        for module, mode in modes:
            module.training = mode
        random.setstate(before[0])
        np.random.set_state(before[1])
        torch.set_rng_state(before[2])
        if on_device is not None:
            torch.cuda.set_rng_state(on_device)
