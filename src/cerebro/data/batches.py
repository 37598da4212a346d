"""Batches of a shard, copied into buffers that are used again and again."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias, cast

import numpy as np

from cerebro.data.arrow import ALIGNMENT
from cerebro.data.columns import Array, BytesColumn, Index, SparseRows, TextColumn, Values
from cerebro.data.schema import Column, Kind, Schema
from cerebro.data.shard import Shard
from cerebro.errors import UsageError

#: What a batch holds for one column.
BatchValues: TypeAlias = Array | list[str] | list[bytes] | SparseRows
Batch: TypeAlias = dict[str, BatchValues]


class BatchBuffers:
    """Memory for batches of up to `batch_size` rows, used for batch after batch, shard after shard.

    A consumer wraps `tensors` once (say, with `torch.from_numpy`) and looks at its own views after
    each step of `fill`: nothing is allocated for a full batch. The content is valid until the next
    step. `fill` always copies, so a batch may be changed in place without harm to the shard.

    >>> import tempfile
    >>> from cerebro.data import from_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = from_arrays(folder, {"x": np.arange(5), "t": list("abcde")}, shards=1)
    ...     buffers = BatchBuffers(data.schema, batch_size=2)
    ...     for rows in buffers.fill(data.open_shard("train", 0)):
    ...         print(buffers.tensors["x"][:rows], buffers.values("t"))
    [2 0] ['c', 'a']
    [1 3] ['b', 'd']
    [4] ['e']
    """

    def __init__(self, schema: Schema, batch_size: int) -> None:
        if batch_size < 1:
            raise UsageError(f"`batch_size >= 1` must hold, but got batch_size={batch_size}.")
        self.batch_size = batch_size
        #: Tensor columns by name, each (batch_size, *shape) and starting at a multiple of 64 bytes.
        self.tensors: dict[str, Array] = {
            name: _aligned(batch_size, column)
            for name, column in schema.items()
            if column.kind is Kind.TENSOR
        }
        self._shard: Shard | None = None
        self._index = np.empty(0, np.int64)

    def fill(self, shard: Shard, order: Index | None = None) -> Iterator[int]:
        """Fill the buffers batch by batch; each step gives the number of rows in this batch.

        `order` gives the rows to take (`permutation`), default all in their order. Every batch but
        the last is full.
        """
        index = _checked(order, shard.rows)
        self._shard = shard
        size, total = self.batch_size, len(index)
        block = shard.block(size)
        # Whole blocks for as many batches as there are; then row by row.
        blocked = _count_blocked(index, block, shard.rows) // size * size
        yield from self._copy(shard, index[:blocked], block)
        yield from self._copy(shard, index[blocked : total - total % size], 1)
        if total % size:
            rows = self._index = index[total - total % size :]
            for name, buffer in self.tensors.items():
                _in_blocks(shard.columns[name], 1).take(rows, 0, buffer[: len(rows)], "clip")
            yield len(rows)

    def _copy(self, shard: Shard, index: Index, block: int) -> Iterator[int]:
        """Full batches, made of blocks of neighbouring rows."""
        size = self.batch_size
        first = int(index[0]) % block if len(index) else 0
        units = (index[::block] - first) // block if block > 1 else index
        # Bound methods, so that a batch costs one C call a column.
        pairs = [
            (_in_blocks(shard.columns[name], block, first).take, _in_blocks(buffer, block))
            for name, buffer in self.tensors.items()
        ]
        for start in range(0, len(index), size):
            self._index = index[start : start + size]
            rows = units[start // block : (start + size) // block]
            # Without "clip", NumPy fills a temporary first and copies it over: 30-60 % slower.
            # Nothing is clipped: the order was checked before.
            for take, buffer in pairs:
                take(rows, 0, buffer, "clip")
            yield size

    def values(self, name: str) -> list[str] | list[bytes] | SparseRows:
        """This batch's rows of a text, bytes or sparse column, gathered when asked for."""
        if self._shard is None:
            raise UsageError("`values` must be called inside a loop over `fill`.")
        column = self._shard.columns[name]
        if isinstance(column, TextColumn | BytesColumn | SparseRows):
            return column.take(self._index)
        raise UsageError(f"column {name!r} is a tensor: read it from `tensors`.")


def iter_batches(
    shard: Shard,
    batch_size: int,
    order: Index | None = None,
    buffers: BatchBuffers | None = None,
) -> Iterator[Batch]:
    """A shard's batches as dicts, in `order`; the last one may have fewer rows.

    Arrays are valid until the next step: they are views of `buffers` (made here if not given).
    Loops that care about microseconds use `BatchBuffers.fill` itself.
    """
    buffers = buffers or BatchBuffers(shard.schema, batch_size)
    if buffers.batch_size != batch_size:
        raise UsageError(
            f"the buffers must be made for batch_size={batch_size}, "
            f"but are for {buffers.batch_size}."
        )
    full: Batch = {name: buffers.tensors.get(name, []) for name in shard.schema}
    others = [name for name in shard.schema if name not in buffers.tensors]
    for rows in buffers.fill(shard, order):
        batch = full
        if rows < batch_size:
            batch = {**full, **{name: array[:rows] for name, array in buffers.tensors.items()}}
        for name in others:
            batch[name] = buffers.values(name)
        yield batch


def _checked(order: Index | None, rows: int) -> Index:
    if order is None:
        return np.arange(rows)
    index = np.ascontiguousarray(order, np.intp)
    if len(index) and not (index.min() >= 0 and index.max() < rows):
        raise UsageError(f"`0 <= row < {rows}` must hold for every row of the order.")
    return index


def _count_blocked(index: Index, block: int, rows: int) -> int:
    """How many rows the order begins with that lie in blocks, cut as `permutation` cuts them."""
    if block == 1 or len(index) < block:
        return 0
    first = int(index[0]) % block
    starts = index[: (rows - first) // block * block : block]
    expected = (starts[:, None] + np.arange(block)).reshape(-1)
    is_blocked = (starts % block == first).all() and np.array_equal(
        index[: len(expected)], expected
    )
    return len(expected) if is_blocked else 0


def _in_blocks(rows: Values, block: int, first: int = 0) -> Array:
    """The same memory with `block` rows as one, from row `first` on; a rest is cut off."""
    array = cast(Array, rows)
    if block == 1:
        return array
    whole = (len(array) - first) // block
    return array[first : first + whole * block].reshape(whole, -1)


def _aligned(rows: int, column: Column) -> Array:
    dtype = np.dtype(column.dtype)
    size = int(rows * np.prod(column.shape, dtype=np.int64)) * dtype.itemsize
    memory = np.empty(size + ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % ALIGNMENT
    return memory[start : start + size].view(dtype).reshape(rows, *column.shape)
