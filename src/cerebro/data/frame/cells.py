"""Arrow record batches as checked columns."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from cerebro.data.columns import Array, BytesColumn, SparseRows, TextColumn, Values
from cerebro.data.conversion import concatenate, to_column
from cerebro.data.frame.vectors import from_vectors, is_vector, to_dense
from cerebro.data.inputs import Table, as_table
from cerebro.data.schema import Column, Kind
from cerebro.errors import DataError


def as_columns(batches: Sequence[pa.RecordBatch], *, sparse: bool, where: str) -> Table:
    """All rows of some batches.

    Args:
        sparse: Leave columns of which every vector is sparse as they are.
        where: What the rows are part of, for errors.
    """
    table = pa.Table.from_batches(batches)
    return as_table(
        {name: _as_column(table[name], name, where, sparse) for name in table.column_names},
        split=where,
    )


def _as_column(column: pa.ChunkedArray, name: str, where: str, sparse: bool) -> Values:
    place = f"column {name!r} ({where})"
    if column.null_count:
        raise DataError(
            f"{place} must have a value in every row, but {column.null_count} of {len(column)} "
            "rows have none. Fill them (df.fillna) or leave those rows out (df.dropna)."
        )
    if is_vector(column.type):
        return from_vectors(_whole(column), place, sparse=sparse)
    return concatenate([to_column(column, place)])


def _whole(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks()
    return pa.concat_arrays(combined.chunks) if isinstance(combined, pa.ChunkedArray) else combined


def join(parts: Sequence[Values], column: Column) -> Values:
    """Parts of a column end to end, as what the column is; sparse ones may have to become dense."""
    if column.kind is Kind.TENSOR:
        dense = [to_dense(part) if isinstance(part, SparseRows) else part for part in parts]
        arrays: list[Array] = [part for part in dense if isinstance(part, np.ndarray)]
        return np.concatenate(arrays)
    if column.kind is Kind.SPARSE:
        return _join_sparse([part for part in parts if isinstance(part, SparseRows)])
    if column.kind is Kind.TEXT:
        return TextColumn(_join_arrow(parts))
    return BytesColumn(_join_arrow(parts))


def _join_arrow(parts: Sequence[Values]) -> pa.Array:
    return pa.concat_arrays(
        [part.arrow for part in parts if isinstance(part, TextColumn | BytesColumn)]
    )


def _join_sparse(parts: Sequence[SparseRows]) -> SparseRows:
    starts = np.cumsum([0, *(part.indptr[-1] for part in parts)])
    pointers = [part.indptr[1:] + start for part, start in zip(parts, starts, strict=False)]
    return SparseRows(
        np.concatenate([[0], *pointers]).astype(np.int64),
        np.concatenate([part.indices for part in parts]),
        np.concatenate([part.data for part in parts]),
        parts[0].width,
    )


def as_batch(name: str, rows: Sequence[bytes]) -> pa.RecordBatch:
    """A record batch with one column of bytes."""
    return pa.record_batch([pa.array(rows, pa.binary())], names=[name])


def with_names(batch: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """The same columns under other names."""
    return pa.RecordBatch.from_arrays(batch.columns, names=list(names))
