"""Batches of a shard as tensors, on the CPU without a copy more than the gather."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from cerebro.data import BatchBuffers, Shard, SparseRows, permutation
from cerebro.train.visit import VisitCall

#: A batch and its number of rows.
Rows = tuple[dict[str, Any], int]


class TorchBatches:
    """Gives out batches on one device; reuses its buffers from batch to batch.

    On an accelerator whole shards are kept on the device while half of its memory holds them, and
    batches are gathered there.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._buffers: dict[int, tuple[BatchBuffers, dict[str, torch.Tensor]]] = {}
        self._resident: dict[int, tuple[Shard, dict[str, torch.Tensor]]] = {}

    def shuffled(self, shard: Shard, call: VisitCall) -> Iterator[Rows]:
        """The batches of a training visit, in its seeded order."""
        order = permutation(
            shard.rows, seed=call.seed, trial=call.trials[0], epoch=call.epoch, shard=call.shard
        )
        return self._batches(shard, call.batch_size, order)

    def in_order(self, shard: Shard, batch_size: int) -> Iterator[Rows]:
        """The batches of an evaluation."""
        return self._batches(shard, batch_size, None)

    def _batches(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        if self._device.type != "cpu":
            columns = self._on_device(shard)
            if columns is not None:
                return self._gather(shard, columns, size, order)
        return self._fill(shard, size, order)

    def _fill(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        buffers, views = self._buffers_for(shard, size)
        others = [name for name in shard.columns if name not in views]
        for rows in buffers.fill(shard, order):
            batch: dict[str, Any] = dict(views)
            if rows < size:
                batch = {name: view[:rows] for name, view in views.items()}
            for name in others:
                batch[name] = _values(buffers.values(name))
            if self._device.type != "cpu":
                batch = {name: self._move(value) for name, value in batch.items()}
            yield batch, rows

    def _buffers_for(self, shard: Shard, size: int) -> tuple[BatchBuffers, dict[str, torch.Tensor]]:
        found = self._buffers.get(size)
        if found is None:
            buffers = BatchBuffers(shard.schema, size)
            views = {name: torch.from_numpy(array) for name, array in buffers.tensors.items()}
            found = self._buffers[size] = (buffers, views)
        return found

    def _move(self, value: Any) -> Any:
        return value.to(self._device) if isinstance(value, torch.Tensor) else value

    def _on_device(self, shard: Shard) -> dict[str, torch.Tensor] | None:
        """The whole shard on the device, or None if it does not fit or has other than tensors."""
        found = self._resident.get(id(shard))
        if found is not None:
            return found[1]
        arrays = {n: c for n, c in shard.columns.items() if isinstance(c, np.ndarray)}
        if len(arrays) < len(shard.columns):
            return None
        size = sum(int(array.nbytes) for array in arrays.values())
        if self._device.type == "cuda":
            free, total = torch.cuda.mem_get_info(self._device)
            if size > free - total // 2:
                return None
        columns = {
            name: torch.from_numpy(np.array(array)).to(self._device)
            for name, array in arrays.items()
        }
        self._resident[id(shard)] = (shard, columns)
        return columns

    def _gather(
        self, shard: Shard, columns: dict[str, torch.Tensor], size: int, order: Any
    ) -> Iterator[Rows]:
        index = None if order is None else torch.from_numpy(order).to(self._device)
        for start in range(0, shard.rows, size):
            stop = min(start + size, shard.rows)
            if index is None:
                batch = {name: column[start:stop] for name, column in columns.items()}
            else:
                rows = index[start:stop]
                batch = {name: column.index_select(0, rows) for name, column in columns.items()}
            yield batch, stop - start


def _values(value: object) -> object:
    if not isinstance(value, SparseRows):
        return value
    with warnings.catch_warnings():
        # PyTorch says once that these are in beta: nothing the user could do about it.
        warnings.simplefilter("ignore", UserWarning)
        return torch.sparse_csr_tensor(
            torch.from_numpy(value.indptr),
            torch.from_numpy(value.indices),
            torch.from_numpy(value.data),
            value.shape,
            check_invariants=False,
        )
