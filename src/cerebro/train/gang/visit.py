"""A visit of one rank: its batches, its steps, and whether all ranks still train one model."""

from __future__ import annotations

from collections.abc import Container, Iterator
from typing import Any, cast

import torch
from torch import Tensor

from cerebro.data import Shard
from cerebro.errors import ReplicaError
from cerebro.task import Batch, Task
from cerebro.train.gang.gradients import BucketMemory
from cerebro.train.gang.group import Gang
from cerebro.train.gang.losses import LossCheck
from cerebro.train.gang.parts import Shares
from cerebro.train.gang.replicas import compare, require_same_shapes
from cerebro.train.gang.step import GangStep
from cerebro.train.loading import Loading
from cerebro.train.progress import PROGRESS
from cerebro.train.torch.batches import TorchBatches, order_of
from cerebro.train.torch.device import Rows
from cerebro.train.torch.precision import amp_of
from cerebro.train.torch.state import Components
from cerebro.train.torch.step import length_of
from cerebro.train.visit import VisitCall
from cerebro.types import trial_id

_DRIFT = (
    "Something changes weights outside of the averaged gradients: an optimizer that the task "
    "steps itself, a hook, or numbers that depend on the rank. Leave backward() and step() to "
    "Cerebro, and keep all that is trained in model() and optimizer()."
)
_UNSEEDED = (
    "model() and optimizer() must draw from nothing but the global generators of torch, NumPy and "
    "random, which are seeded for each trial; not from a generator of their own without a seed, "
    "the time, the process or the host."
)


class GangVisit:
    """What a framework does differently for a visit because it is one rank of a gang."""

    def __init__(
        self,
        gang: Gang,
        task: Task,
        parts: Components,
        call: VisitCall,
        device: torch.device,
        memory: BucketMemory,
    ) -> None:
        self._gang = gang
        self._parts = parts
        self._shares = Shares(call.batch_size, gang.size)
        self._call = call
        self._visit = f"a visit of {trial_id(call.trials[0])} to shard {call.shard}"
        self._step = GangStep(gang, task, parts, call, device.type, memory)
        memory.sweep()
        is_rough = device.type != "cpu" or amp_of(task, call.params[0]) is not None
        self._losses = LossCheck(
            *(gang, task, parts.model, self._step, device.type),
            visit=self._visit,
            is_rough=is_rough,
        )
        #: Columns of the last batch that was looked at, one entry for each of its rows.
        self._columns: tuple[str, ...] = ()
        self._rows = 0
        self._done = 0

    def batches(self, shard: Shard, batches: TorchBatches, loading: Loading) -> Iterator[Rows]:
        """This rank's part of each batch, and the rows of the whole batch.

        Losses are compared only while buffers are the same for all ranks: running means, those of
        a rank's own rows, give the same rows another loss.
        """
        order = order_of(shard, self._call)[: self._call.limit]
        parts = loading.of(own_batches(shard, batches, order, self._shares, self._gang.rank))
        return self._checked(shard, batches, order, parts)

    def _checked(
        self, shard: Shard, batches: TorchBatches, order: Any, parts: Iterator[Rows]
    ) -> Iterator[Rows]:
        gang, size = self._gang, self._call.batch_size
        for number, start in enumerate(range(0, len(order), size)):
            rows = min(size, len(order) - start)
            own = self._shares.count(rows, gang.rank)
            is_due, looks = gang.check_every > 0 and number % gang.check_every == 0, False
            if is_due:
                looks = not (number and self._compare(f"after step {number} of {self._visit}"))
                if looks:
                    index = order[start : start + rows]
                    self._losses.begin(shard, batches, index, self._shares, number)
            batch: dict[str, Any] = {}
            if own:
                batch = next(parts)[0]
            else:
                PROGRESS.tick()
            if is_due:
                if looks:
                    self._losses.finish(batch, own)
                self._columns = tuple(k for k, v in batch.items() if length_of(v) == own)
            self._rows += own
            yield batch, rows

    def step(self, batch: Batch, rows: int) -> Any:
        """Train on this rank's part of a batch of so many rows; the loss of all of them."""
        for name in self._columns:
            self._require_rows(name, batch, rows)
        self._columns = ()
        self._done += 1
        return self._step(batch, rows)

    def settle(self) -> None:
        """After the last step: compare the replicas, and average what each keeps of its own rows.

        Batch norm is the reason for the latter: running means of a rank are those of its rows.
        """
        self._step.close()
        wrong = self._compare(f"after step {self._done}, the last of {self._visit},")
        self._average([tensor for tensor in wrong if tensor.is_floating_point()])

    def _compare(self, when: str) -> list[Tensor]:
        """Buffers that are not the same for all ranks; nothing else may differ."""
        buffers = {f"model.{n}": b.detach() for n, b in self._parts.model.named_buffers()}
        others = self._parts.tensors() if self._gang.check_every else {}
        tensors = {name: t for name, t in others.items() if not name.startswith("attr.")}
        wrong = compare(self._gang, {**tensors, **buffers}, when, _DRIFT, loose=buffers)
        return [buffers[name] for name in wrong]

    def _average(self, tensors: list[Tensor]) -> None:
        if not tensors:
            return
        flat = torch.cat([t.reshape(-1).to("cpu", torch.float64) for t in tensors])
        rows = self._gang.gather(torch.tensor([float(self._rows)], dtype=torch.float64))
        mean = (self._gang.gather(flat) * (rows / rows.sum())).sum(0)
        start = 0
        for tensor in tensors:
            part = mean[start : start + tensor.numel()]
            tensor.copy_(part.view(tensor.shape))
            start += tensor.numel()

    def _require_rows(self, name: str, batch: Batch, rows: int) -> None:
        own = self._shares.count(rows, self._gang.rank)
        if name in batch and length_of(batch[name]) != own:
            raise ReplicaError(
                f"augment() must leave the number of rows as it is in a gang, but column {name!r} "
                f"has {length_of(batch[name])} rows of {own} on rank {self._gang.rank}, at step "
                f"{self._done} of {self._visit}."
            )


def own_batches(
    shard: Shard, batches: TorchBatches, order: Any, shares: Shares, rank: int
) -> Iterator[Rows]:
    """A rank's part of every batch of an order, but for those of which it has none."""
    size = shares.batch_size
    whole = len(order) // size * size
    first, last = shares.part(size, rank)
    if whole and last > first:
        rows = order[:whole].reshape(-1, size)[:, first:last].reshape(-1)
        yield from batches.batches(shard, last - first, rows)
    first, last = shares.part(len(order) - whole, rank)
    if last > first:
        yield from batches.batches(shard, last - first, order[whole + first : whole + last])


def begin_alike(gang: Gang, parts: Components, call: VisitCall) -> None:
    """All ranks begin with the new model of rank 0; where replicas are checked it is their own."""
    when = f"before the first step of {trial_id(call.trials[0])}"
    tensors = parts.tensors()
    loose: Container[str] = () if gang.check_every else tensors
    wrong = compare(gang, tensors, when, _UNSEEDED, loose=loose)
    if wrong:
        require_same_shapes(gang, tensors, when)
    for name in wrong:
        tensor = tensors[name].detach()
        sent = tensor.to("cpu", copy=True).contiguous()
        gang.spread(sent.view(-1).view(torch.uint8))
        tensor.copy_(sent)


def add_up(gang: Gang, totals: dict[str, float]) -> dict[str, float]:
    """Sums over the rows of all ranks, by name; a rank without rows has none of its own."""
    found: dict[str, float] = {}
    for own in gang.gather_json({name: float(total) for name, total in totals.items()}):
        for name, total in cast("dict[str, float]", own).items():
            found[name] = found.get(name, 0.0) + total
    return found
