"""Batches on an accelerator: from shards that lie there, or moved while the last one trains."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor

from cerebro.data import BatchBuffers, Shard, SparseRows
from cerebro.types import Split

#: A batch and its number of rows.
Rows = tuple[dict[str, Any], int]
_T = TypeVar("_T")
_K = TypeVar("_K")

#: Batch sizes whose buffers are kept: trials with different ones take turns on a worker.
BATCH_SIZES = 8
#: For shards on a device that does not tell how much memory it has.
_UNKNOWN_DEVICE_BYTES = 1 << 30


def recall(kept: OrderedDict[_K, _T], size: _K, make: Callable[[], _T]) -> _T:
    """What was made for this batch size, or a new one in place of the one unused for longest."""
    if size in kept:
        kept.move_to_end(size)
        return kept[size]
    if len(kept) >= BATCH_SIZES:
        kept.popitem(last=False)
    return kept.setdefault(size, make())


def as_tensor(value: object) -> object:
    """Sparse rows as a sparse tensor; text and bytes as they are."""
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


class DeviceBatches:
    """Batches of one dataset's shards on an accelerator, each in memory of its own.

    Shards that fit are kept there, and batches are gathered there; of others the next batch is on
    its way while this one trains.
    """

    def __init__(self, device: torch.device, *, resident_bytes: int | None = None) -> None:
        self._device = device
        self.resident = ResidentShards(device, resident_bytes)
        self._stages: OrderedDict[tuple[int, tuple[str, ...]], tuple[_Stage, _Stage]] = (
            OrderedDict()
        )
        self._stream: torch.cuda.Stream | None = None
        if device.type == "cuda":
            self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]

    def batches(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        """The shard's rows in `order`, or as they lie."""
        columns = self.resident.columns(shard)
        if columns is None:
            return self._move(shard, size, order)
        return self._gather(shard, columns, size, order)

    def free(self) -> None:
        """Give back the memory of shards and batches."""
        self.resident.clear()
        self._stages.clear()

    def _gather(
        self, shard: Shard, columns: dict[str, Tensor], size: int, order: Any
    ) -> Iterator[Rows]:
        index = None if order is None else torch.from_numpy(order).to(self._device)
        total = shard.rows if order is None else len(order)
        for start in range(0, total, size):
            stop = min(start + size, total)
            if index is None:
                # Not views: a task may change its batch in place.
                batch = {name: column[start:stop].clone() for name, column in columns.items()}
            else:
                rows = index[start:stop]
                batch = {name: column.index_select(0, rows) for name, column in columns.items()}
            yield batch, stop - start

    def _move(self, shard: Shard, size: int, order: Any) -> Iterator[Rows]:
        """Two stages take turns: one batch is moved from the one, the next from the other."""
        index = np.arange(shard.rows) if order is None else order
        stages = recall(
            self._stages,
            (size, tuple(shard.schema)),
            lambda: (_Stage(shard, size, self._stream), _Stage(shard, size, self._stream)),
        )
        fills = [
            stage.buffers.fill(shard, _every_other(index, size, turn))
            for turn, stage in enumerate(stages)
        ]
        ahead: tuple[_Stage, dict[str, Any], int] | None = None
        for stage, fill in itertools.cycle(zip(stages, fills, strict=True)):
            stage.wait()
            rows = next(fill, None)
            if rows is None:
                break
            sent = stage, stage.send(shard, rows, self._device), rows
            if ahead is not None:
                yield self._receive(*ahead)
            ahead = sent
        if ahead is not None:
            yield self._receive(*ahead)

    def _receive(self, stage: _Stage, batch: dict[str, Any], rows: int) -> Rows:
        if stage.moved is not None:
            current = torch.cuda.current_stream(self._device)
            current.wait_event(stage.moved)
            for name in stage.views:
                # The memory belongs to the other stream: it must not be given to the batch after
                # next before this stream is done with it.
                batch[name].record_stream(current)
        return batch, rows


class _Stage:
    """Host memory for one batch, from which it is moved to the device.

    With a stream the memory is pinned, and `moved` marks the end of the last move on that stream.
    """

    def __init__(self, shard: Shard, size: int, stream: torch.cuda.Stream | None) -> None:
        self.buffers = BatchBuffers(shard.schema, size)
        self.views = {name: torch.from_numpy(a) for name, a in self.buffers.tensors.items()}
        self.moved: torch.cuda.Event | None = None
        self._stream = stream
        if stream is not None:
            self.moved = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self.views = {
                name: torch.empty(view.shape, dtype=view.dtype, pin_memory=True)
                for name, view in self.views.items()
            }
            self.buffers.tensors = {name: view.numpy() for name, view in self.views.items()}

    def wait(self) -> None:
        """Return once the buffers may be filled again."""
        if self.moved is not None:
            self.moved.synchronize()

    def send(self, shard: Shard, rows: int, device: torch.device) -> dict[str, Any]:
        """Start to move what the buffers hold."""
        others = {
            name: as_tensor(self.buffers.values(name))
            for name in shard.columns
            if name not in self.views
        }
        batch = {k: v.to(device) if isinstance(v, Tensor) else v for k, v in others.items()}
        is_pinned = self._stream is not None
        with torch.cuda.stream(self._stream) if is_pinned else contextlib.nullcontext():
            for name, view in self.views.items():
                batch[name] = view[:rows].to(device, non_blocking=is_pinned, copy=True)
            if self.moved is not None:
                self.moved.record(self._stream)
        return batch


class ResidentShards:
    """Whole shards of one dataset on a device, within a number of bytes.

    That is half of the memory of a CUDA device unless told otherwise; the shard that was unused for
    longest makes room. Shards are known by split, number and rows: a `Dataset` may map one anew.
    """

    def __init__(self, device: torch.device, limit_bytes: int | None = None) -> None:
        self._device = device
        self._limit = _half_of(device) if limit_bytes is None else limit_bytes
        self._kept: OrderedDict[tuple[Split, int, int], dict[str, Tensor]] = OrderedDict()
        self.bytes = 0

    def clear(self) -> None:
        """Let all of them go."""
        self._kept.clear()
        self.bytes = 0

    def columns(self, shard: Shard) -> dict[str, Tensor] | None:
        """The whole shard on the device, or None if it does not fit or has other than tensors."""
        key = shard.split, shard.number, shard.rows
        if key in self._kept:
            self._kept.move_to_end(key)
            return self._kept[key]
        arrays = {n: c for n, c in shard.columns.items() if isinstance(c, np.ndarray)}
        size = sum(int(array.nbytes) for array in arrays.values())
        if len(arrays) < len(shard.columns) or size > self._limit:
            return None
        while self.bytes + size > self._limit:
            _, oldest = self._kept.popitem(last=False)
            self.bytes -= sum(column.nbytes for column in oldest.values())
        if size > _free_of(self._device):
            return None
        self._kept[key] = {
            # A copy: what is mapped is read-only.
            name: torch.from_numpy(np.array(array)).to(self._device)
            for name, array in arrays.items()
        }
        self.bytes += size
        return self._kept[key]


def _half_of(device: torch.device) -> int:
    if device.type != "cuda":
        return _UNKNOWN_DEVICE_BYTES
    return torch.cuda.mem_get_info(device)[1] // 2


def _free_of(device: torch.device) -> int:
    """Bytes that shards may take now: half of the device is left to models and other processes."""
    if device.type != "cuda":
        return _UNKNOWN_DEVICE_BYTES
    free, total = torch.cuda.mem_get_info(device)
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free + cached - total // 2


def _every_other(index: Any, size: int, first: int) -> Any:
    """The rows of every second batch."""
    starts = range(first * size, len(index), 2 * size)
    return np.concatenate([index[:0], *(index[start : start + size] for start in starts)])
