"""Batches for a stack: every member's own rows of one shard, side by side."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from cerebro.data import BatchBuffers, Shard, batch_order
from cerebro.train.visit import VisitCall

Tensors = dict[str, Tensor]


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


def first_rows(shard: Shard, rows: int) -> Shard:
    """The first rows of a shard, whose columns are tensors."""
    columns = {name: column[:rows] for name, column in (tensor_columns(shard) or {}).items()}
    return replace(shard, rows=min(shard.rows, rows), columns=columns)


class HostBatches:
    """Gathers batches of a stack on the host, in memory that is used again."""

    def __init__(self, shard: Shard, size: int, members: int) -> None:
        self._size = size
        # PyTorch's memory starts at a whole line: where it starts may decide the last bit of a sum.
        self._memory = {
            name: torch.empty((members, size, *array.shape[1:]), dtype=dtype_of(array))
            for name, array in (tensor_columns(shard) or {}).items()
        }
        self._buffers: list[BatchBuffers] = []

    def fill(self, shard: Shard, orders: Sequence[Any]) -> Iterator[tuple[Tensors, int]]:
        """Batches [member, row, ...] in the members' orders, and their rows."""
        if shard.block(self._size) == 1:
            return self._fill_at_once(shard, orders)
        return self._fill_by_member(shard, orders)

    def _fill_at_once(self, shard: Shard, orders: Sequence[Any]) -> Iterator[tuple[Tensors, int]]:
        index = np.stack(orders)
        for start in range(0, index.shape[1], self._size):
            rows = np.ascontiguousarray(index[:, start : start + self._size])
            count = rows.shape[1]
            batch = {}
            for name, whole in self._memory.items():
                column: Any = shard.columns[name]
                full = count == self._size
                batch[name] = whole if full else torch.empty_like(whole[:, :count])
                column.take(rows, 0, batch[name].numpy(), "clip")
            yield batch, count

    def _fill_by_member(self, shard: Shard, orders: Sequence[Any]) -> Iterator[tuple[Tensors, int]]:
        if not self._buffers:
            self._buffers = [BatchBuffers(shard.schema, self._size) for _ in orders]
            for name, whole in self._memory.items():
                for part, buffers in zip(whole.numpy(), self._buffers, strict=True):
                    buffers.tensors[name] = part
        fills = [b.fill(shard, order) for b, order in zip(self._buffers, orders, strict=True)]
        for rows in zip(*fills, strict=True):
            count = rows[0]
            if count == self._size:
                yield self._memory, count
            else:
                yield {name: t[:, :count].contiguous() for name, t in self._memory.items()}, count


def dtype_of(array: Any) -> torch.dtype:
    """PyTorch's dtype of a NumPy array."""
    return torch.from_numpy(np.empty(0, array.dtype)).dtype
