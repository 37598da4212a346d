"""Predictions as Arrow, CSV and Parquet: a part for each shard, then one table of all rows."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from cerebro.data.arrow import Parts
from cerebro.data.columns import Array, BytesColumn, TextColumn
from cerebro.data.roles import ID
from cerebro.data.shard import Shard
from cerebro.errors import DataError, UsageError


def row_ids(shard: Shard, first: int) -> Array | list[str] | list[bytes]:
    """The rows' own ids, where the data have a column "id" of them, else their numbers."""
    column = shard.columns.get(ID)
    if isinstance(column, TextColumn | BytesColumn):
        return column.take(np.arange(shard.rows))
    if isinstance(column, np.ndarray) and column.ndim == 1:
        return column
    return np.arange(first, first + shard.rows)


def encode_part(columns: Mapping[str, Any]) -> list[memoryview]:
    """Arrays and lists by name, all of one length, as the parts of an Arrow file."""
    arrays = {name: _to_arrow(values) for name, values in columns.items()}
    schema = pa.schema([pa.field(n, a.type, nullable=False) for n, a in arrays.items()])
    sink = Parts()
    options = pa.ipc.IpcWriteOptions(compression=None)
    with pa.ipc.new_file(pa.PythonFile(sink, mode="w"), schema, options=options) as writer:
        writer.write_batch(pa.record_batch(list(arrays.values()), schema=schema))
    return sink.parts


def csv_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a CSV file with the rows of all parts, part by part.

    A value that is a vector of k numbers takes k columns, `name_0` to `name_{k-1}`. Bytes are
    written as hexadecimal text: they need not be text themselves.
    """
    options = pa.csv.WriteOptions(include_header=False)
    for number, table in enumerate(_tables(parts)):
        flat = _flattened(table)
        if number == 0:
            header = io.StringIO()
            csv.writer(header, lineterminator="\n").writerow(flat.column_names)
            yield header.getvalue().encode()
        sink = pa.BufferOutputStream()
        pa.csv.write_csv(flat, sink, options)
        yield sink.getvalue().to_pybytes()


def parquet_chunks(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The bytes of a Parquet file with the rows of all parts, a row group for each."""
    sink, writer = _Copies(), None
    for table in _tables(parts):
        if writer is None:
            writer = pa.parquet.ParquetWriter(pa.PythonFile(sink, mode="w"), table.schema)
        writer.write_table(table)
        yield from sink.take()
    if writer is not None:
        writer.close()
        yield from sink.take()


def read_predictions(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The columns of a Parquet file of predictions: arrays, or lists of text or bytes."""
    with pa.memory_map(os.fspath(path)) as source:
        table = pa.parquet.ParquetFile(source).read()
        return {name: _to_values(table.column(name)) for name in table.column_names}


def read_head(path: str | os.PathLike[str], rows: int) -> tuple[list[str], list[list[str]]]:
    """The names of a CSV file's columns, and the cells of its first rows."""
    with open(path, encoding="utf-8", newline="") as file:
        reader = csv.reader(file)
        names = next(reader)
        return names, [row for row, _ in zip(reader, range(rows), strict=False)]


class _Copies(Parts):
    """Keeps copies: a Parquet writer uses its memory again."""

    def write(self, data: bytes | pa.Buffer) -> int:
        return super().write(bytes(memoryview(data)))

    def take(self) -> list[bytes]:
        """What was written since the last time."""
        taken, self.parts = [bytes(part) for part in self.parts], []
        return taken


def _tables(parts: Iterable[bytes]) -> Iterator[pa.Table]:
    expected: pa.Schema | None = None
    for number, part in enumerate(parts):
        try:
            table = pa.ipc.open_file(pa.BufferReader(part)).read_all()
        except (pa.ArrowException, OSError) as error:
            raise DataError(f"part {number} of the predictions is damaged: {error}") from error
        expected = expected or table.schema
        for name in [*expected.names, *table.column_names]:
            here, first = (
                s.field(name).type if name in s.names else None for s in (table.schema, expected)
            )
            if here != first:
                raise UsageError(
                    "predict must give the same columns for every shard, but "
                    f"{name!r} is {first} in the first and {here} in shard {number}."
                )
        yield table


def _to_arrow(values: Any) -> pa.Array:
    if isinstance(values, list):
        return pa.array(values, pa.string() if isinstance(values[0], str) else pa.binary())
    found = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        found = pa.FixedSizeListArray.from_arrays(found, size)
    return found


def _to_values(column: pa.ChunkedArray) -> Any:
    kind, shape = column.type, [len(column)]
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    while pa.types.is_fixed_size_list(kind):
        shape.append(kind.list_size)
        kind, array = kind.value_type, array.flatten()
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return array.to_pylist()
    return np.asarray(array.to_numpy(zero_copy_only=False)).reshape(shape)


def _flattened(table: pa.Table) -> pa.Table:
    """The table with a column for each number of a vector."""
    found: dict[str, pa.Array] = {}
    for name in table.column_names:
        for key, array in _split(name, table.column(name).combine_chunks()):
            if key in found:
                raise UsageError(
                    f"every column of a CSV file needs a name of its own, but predict gives two "
                    f"for {key!r}: call one of them something else."
                )
            found[key] = array
    return pa.table(found)


def _split(name: str, array: Any) -> Iterator[tuple[str, pa.Array]]:
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    rows, width = len(array), 1
    if not pa.types.is_fixed_size_list(array.type):
        is_bytes = pa.types.is_binary(array.type)
        yield name, pa.array([v.hex() for v in array.to_pylist()]) if is_bytes else array
        return
    while pa.types.is_fixed_size_list(array.type):
        width *= array.type.list_size
        array = array.flatten()
    for place in range(width):
        yield f"{name}_{place}", array.take(pa.array(np.arange(place, rows * width, width)))
