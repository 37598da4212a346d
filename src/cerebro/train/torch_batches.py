"""Batches of a shard as tensors, on the CPU without a copy more than the gather."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.train.progress import PROGRESS
from cerebro.train.torch_device import DeviceBatches, Rows, as_tensor, recall
from cerebro.train.visit import VisitCall

_T = TypeVar("_T")
Buffers = tuple[BatchBuffers, dict[str, torch.Tensor]]


class TorchBatches:
    """Gives out batches of one dataset on one device.

    On the CPU their memory is used again from batch to batch, but every batch has tensors of its
    own: what a task asks of one (`requires_grad_`) is forgotten with it.
    """

    def __init__(self, device: torch.device) -> None:
        self._buffers: OrderedDict[int, Buffers] = OrderedDict()
        self.on_device = None if device.type == "cpu" else DeviceBatches(device)

    def shuffled(self, shard: Shard, call: VisitCall) -> Iterator[Rows]:
        """The batches of a training visit, in its seeded order."""
        trial = 0 if call.same_order else call.trials[0]
        order = batch_order(shard, call.batch_size, seed=call.seed, trial=trial, epoch=call.epoch)
        return self._batches(shard, call.batch_size, order)

    def in_order(self, shard: Shard, batch_size: int) -> Iterator[Rows]:
        """The batches of an evaluation."""
        return self._batches(shard, batch_size, None)

    def free(self) -> None:
        """Give back the memory of batches and shards."""
        self._buffers.clear()
        if self.on_device is not None:
            self.on_device.free()

    def _batches(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        if self.on_device is not None:
            return counted(self.on_device.batches(shard, size, order))
        return counted(self._fill(shard, size, order))

    def _fill(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        buffers, views = recall(self._buffers, size, lambda: _make_buffers(shard, size))
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


def counted(batches: Iterator[_T]) -> Iterator[_T]:
    """The batches, each told as progress before it is trained on."""
    for batch in batches:
        PROGRESS.tick()
        yield batch


def _make_buffers(shard: Shard, size: int) -> Buffers:
    buffers = BatchBuffers(shard.schema, size)
    return buffers, {name: torch.from_numpy(array) for name, array in buffers.tensors.items()}
