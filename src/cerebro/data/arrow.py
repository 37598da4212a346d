"""Columns as the bytes of an Arrow IPC file, and back without a copy.

A file holds one uncompressed record batch, so that each tensor column is one contiguous array in
the mapped file. The tensor column with the largest rows comes first and starts at a multiple of 64
bytes, where copying its rows is fastest.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa

from cerebro.data.columns import (
    BytesColumn,
    SparseRows,
    TextColumn,
    Values,
    as_arrow,
    as_numpy,
)
from cerebro.data.schema import Column, Kind, Schema
from cerebro.errors import DataError

ALIGNMENT = 64
_INT32_MAX = 2**31 - 1


def encode(columns: Mapping[str, Values], schema: Schema) -> list[memoryview]:
    """The file's bytes as consecutive parts; arrays are referred to, not copied."""
    arrays = {name: _to_arrow(columns[name], schema[name]) for name in _file_order(schema)}
    parts, start = _write(arrays, padding=0)
    if start % ALIGNMENT:
        parts, start = _write(arrays, padding=-start % ALIGNMENT)
    return parts


def decode(buffer: pa.Buffer, schema: Schema, *, check: bool) -> dict[str, Values]:
    """The columns of a file in memory, as views of it.

    Raises `DataError` if the file is not what `schema` says. With `check` every offset, text and
    sparse index is looked at too, so that no later access can go astray.
    """
    try:
        reader = pa.ipc.open_file(pa.BufferReader(buffer))
        if reader.num_record_batches != 1:
            raise DataError(f"it holds {reader.num_record_batches} record batches instead of one")
        batch = reader.get_batch(0)
        if check:
            batch.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"it is not a readable Arrow file: {error}") from error
    names = _file_order(schema)
    if batch.schema.names != names:
        raise DataError(f"it has columns {batch.schema.names} instead of {names}")
    return {
        name: _from_arrow(batch.column(names.index(name)), name, column, check)
        for name, column in schema.items()
    }


def _file_order(schema: Schema) -> list[str]:
    return sorted(schema, key=lambda name: -(schema[name].row_bytes or 0))


class Parts:
    """A file object that keeps what is written to it, without copying."""

    closed = False

    def __init__(self) -> None:
        self.parts: list[memoryview] = []
        #: Where the first array starts: metadata comes as `bytes`, arrays as Arrow buffers.
        self.start: int | None = None
        self._size = 0

    def write(self, data: bytes | pa.Buffer) -> int:
        if self.start is None and isinstance(data, pa.Buffer):
            self.start = self._size
        part = memoryview(data)
        self.parts.append(part)
        self._size += part.nbytes
        return part.nbytes

    def tell(self) -> int:
        return self._size

    def flush(self) -> None:
        """Arrow calls this; nothing is held back."""

    def close(self) -> None:
        """Arrow calls this; there is nothing to close."""


def _write(arrays: Mapping[str, pa.Array], *, padding: int) -> tuple[list[memoryview], int]:
    """The file's parts, and where its first array starts."""
    fields = [pa.field(name, array.type, nullable=False) for name, array in arrays.items()]
    # Arrow pads its own metadata to 8 bytes only; a longer value here moves all that follows.
    arrow_schema = pa.schema(fields, metadata={"cerebro": "1" + " " * padding})
    sink = Parts()
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), arrow_schema, options=options) as writer:
        writer.write_batch(pa.record_batch(list(arrays.values()), schema=arrow_schema))
    return sink.parts, sink.start or 0


def arrow_type(column: Column) -> pa.DataType:
    """The Arrow type a column is stored as."""
    if column.kind is Kind.TEXT:
        return pa.large_string()
    if column.kind is Kind.BYTES:
        return pa.large_binary()
    # Arrow packs booleans into bits, which could not be mapped as an array.
    dtype = "uint8" if column.dtype == "bool" else column.dtype
    value = pa.from_numpy_dtype(np.dtype(dtype))
    if column.kind is Kind.SPARSE:
        index = pa.int32() if column.shape[0] <= _INT32_MAX else pa.int64()
        entry = [pa.field("index", index, nullable=False), pa.field("value", value, nullable=False)]
        return pa.large_list(pa.field("item", pa.struct(entry), nullable=False))
    return pa.fixed_shape_tensor(value, column.shape) if column.shape else value


def _to_arrow(values: Values, column: Column) -> pa.Array:
    kind = arrow_type(column)
    if isinstance(values, TextColumn | BytesColumn):
        return values.arrow.cast(kind)
    if isinstance(values, SparseRows):
        entry = kind.value_type
        parts = [pa.array(values.indices, entry[0].type), pa.array(values.data, entry[1].type)]
        items = pa.StructArray.from_arrays(parts, fields=list(entry))
        return pa.LargeListArray.from_arrays(pa.array(values.indptr, pa.int64()), items, type=kind)
    flat = np.ascontiguousarray(values, np.dtype(column.dtype)).reshape(-1)
    if column.dtype == "bool":
        flat = flat.view(np.uint8)
    if not column.shape:
        return as_arrow(flat)
    size = int(np.prod(column.shape))
    storage = pa.FixedSizeListArray.from_arrays(as_arrow(flat), size)
    return pa.ExtensionArray.from_storage(kind, storage.cast(kind.storage_type))


def _from_arrow(array: pa.Array, name: str, column: Column, check: bool) -> Values:
    if array.type != arrow_type(column):
        raise DataError(f"its column {name!r} is {array.type} instead of {column}")
    if array.null_count:
        raise DataError(f"its column {name!r} has missing values")
    if column.kind is Kind.TEXT:
        return TextColumn(array)
    if column.kind is Kind.BYTES:
        return BytesColumn(array)
    if column.kind is Kind.SPARSE:
        return _sparse_from_arrow(array, name, column.shape[0], check)
    # Not `flatten`, which loads the whole of pyarrow.compute: 100 ms.
    storage = array.storage.values if column.shape else array
    values = as_numpy(storage).reshape(len(array), *column.shape)
    return values.view(np.bool_) if column.dtype == "bool" else values


def _sparse_from_arrow(array: pa.Array, name: str, width: int, check: bool) -> SparseRows:
    indptr, items = as_numpy(array.offsets), array.values
    indices, data = as_numpy(items.field(0)), as_numpy(items.field(1))
    if check and len(indices) and not (indices.min() >= 0 and indices.max() < width):
        raise DataError(f"its column {name!r} has an index outside 0..{width - 1}")
    return SparseRows(indptr, indices, data, width)
