"""Batches for a stack: every member's own rows of one shard, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.train.visit import VisitCall


def orders_of(shard: Shard, call: VisitCall) -> list[Any]:
    """The rows of the shard in each member's order; one order if they share it."""
    trials = (0,) if call.same_order else call.trials
    return [
        batch_order(shard, call.batch_size, seed=call.seed, trial=trial, epoch=call.epoch)
        for trial in trials
    ]


def tensor_columns(shard: Shard) -> Mapping[str, Any] | None:
    """The shard's columns, if all are tensors."""
    if all(isinstance(column, np.ndarray) for column in shard.columns.values()):
        return shard.columns
    return None


class HostBatches:
    """Gathers batches of a stack on the host, in memory that is used again."""

    def __init__(self, shard: Shard, size: int, members: int) -> None:
        self._size = size
        self._members = members
        self._memory: dict[str, Tensor] = {}
        self._buffers = [BatchBuffers(shard.schema, size) for _ in range(members)]
        for name, array in self._buffers[0].tensors.items():
            whole = np.empty((members, *array.shape), array.dtype)
            self._memory[name] = torch.from_numpy(whole)
            for part, buffers in zip(whole, self._buffers, strict=True):
                buffers.tensors[name] = part
        self._whole = {name: tensor.numpy() for name, tensor in self._memory.items()}

    def fill(self, shard: Shard, orders: Sequence[Any]) -> Iterator[tuple[dict[str, Tensor], int]]:
        """Batches [member, row, ...] in the members' orders, and their rows."""
        if shard.block(self._size) == 1:
            yield from self._fill_at_once(shard, orders)
            return
        fills = [b.fill(shard, order) for b, order in zip(self._buffers, orders, strict=True)]
        for rows in zip(*fills, strict=True):
            yield {name: t[:, : rows[0]] for name, t in self._memory.items()}, rows[0]

    def _fill_at_once(
        self, shard: Shard, orders: Sequence[Any]
    ) -> Iterator[tuple[dict[str, Tensor], int]]:
        index = np.stack(orders)
        size = self._size
        for start in range(0, shard.rows, size):
            rows = np.ascontiguousarray(index[:, start : start + size])
            batch = {}
            for name, whole in self._whole.items():
                column: Any = shard.columns[name]
                target = whole[:, : rows.shape[1]]
                if target.flags.c_contiguous:
                    column.take(rows, 0, target, "clip")
                    batch[name] = self._memory[name]
                else:
                    batch[name] = torch.from_numpy(column.take(rows, 0))
            yield batch, rows.shape[1]
