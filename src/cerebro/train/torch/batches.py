"""Batches of a shard as tensors, on the CPU without a copy more than the gather."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.task import Task
from cerebro.train.progress import PROGRESS
from cerebro.train.torch.decode import Decoder
from cerebro.train.torch.device import DeviceBatches, Rows, as_tensor, recall
from cerebro.train.visit import VisitCall

_T = TypeVar("_T")
Buffers = tuple[BatchBuffers, dict[str, torch.Tensor]]


class TorchBatches:
    """Gives out batches of one dataset on one device.

    On the CPU their memory is used again from batch to batch, but every batch has tensors of its
    own: what a task asks of one (`requires_grad_`) is forgotten with it.
    """

    def __init__(self, device: torch.device, task: Task | None = None) -> None:
        self._buffers: OrderedDict[tuple[int, tuple[str, ...]], Buffers] = OrderedDict()
        self._decoder = None if task is None else Decoder.of(task, device)
        self.on_device = None if device.type == "cpu" else DeviceBatches(device)

    def shuffled(self, shard: Shard, call: VisitCall) -> Iterator[Rows]:
        """The batches of a training visit, in its seeded order."""
        return self.batches(shard, call.batch_size, order_of(shard, call)[: call.limit])

    def in_order(self, shard: Shard, batch_size: int) -> Iterator[Rows]:
        """The batches of an evaluation."""
        return self.batches(shard, batch_size, None)

    def free(self) -> None:
        """Give back the memory of batches and shards."""
        self._buffers.clear()
        if self.on_device is not None:
            self.on_device.free()

    def batches(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        """The rows that `order` names, default all as they lie."""
        return counted(self.uncounted(shard, size, order))

    def uncounted(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        """The same, but not told as progress: for a second look."""
        decoder = self._decoder
        if self.on_device is None or (decoder is not None and decoder.is_due_on_host(shard)):
            found = self._fill(shard, size, order)
        else:
            found = self.on_device.batches(shard, size, order)
        return found if decoder is None else map(decoder, found)

    def _fill(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        key = size, tuple(shard.schema)
        buffers, views = recall(self._buffers, key, lambda: _make_buffers(shard, size))
        others = [name for name in shard.columns if name not in views]
        for rows in buffers.fill(shard, order):
            batch: dict[str, Any]
            if rows < size:
                batch = {name: view[:rows] for name, view in views.items()}
            else:
                batch = {name: view.detach() for name, view in views.items()}
            for name in others:
                batch[name] = as_tensor(buffers.values(name))
            yield batch, rows


def order_of(shard: Shard, call: VisitCall) -> Any:
    """The seeded order in which a training visit sees the rows of its shard."""
    trial = 0 if call.same_order else call.trials[0]
    return batch_order(shard, call.batch_size, seed=call.seed, trial=trial, epoch=call.epoch)


def counted(batches: Iterator[_T]) -> Iterator[_T]:
    """The batches, each told as progress before it is trained on."""
    for batch in batches:
        PROGRESS.tick()
        yield batch


def _make_buffers(shard: Shard, size: int) -> Buffers:
    buffers = BatchBuffers(shard.schema, size)
    return buffers, {name: torch.from_numpy(array) for name, array in buffers.tensors.items()}
