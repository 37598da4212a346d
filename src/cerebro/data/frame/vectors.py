"""Vectors of Spark ML in Arrow: structs of type, size, indices and values, one a row."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from cerebro.data.columns import Array, SparseRows
from cerebro.errors import DataError

_FIELDS = {"type", "size", "indices", "values"}
_DENSE = 1


def is_vector(kind: pa.DataType) -> bool:
    """Whether a column of this type holds vectors.

    >>> is_vector(pa.float64())
    False
    """
    return pa.types.is_struct(kind) and {field.name for field in kind} == _FIELDS


def from_vectors(array: pa.StructArray, where: str, *, sparse: bool) -> Array | SparseRows:
    """The vectors as one array, or as sparse rows if all of them are and `sparse` allows it."""
    is_dense = _numbers(array.field("type")) == _DENSE
    values, indices = array.field("values"), array.field("indices")
    lengths = _lengths(values)
    widths = np.where(is_dense, lengths, _numbers(array.field("size").fill_null(0)))
    if len(widths) and (widths != widths[0]).any():
        odd = int(np.flatnonzero(widths != widths[0])[0])
        raise DataError(
            f"{where}: all vectors must have the same size, but one has {widths[0]} and another "
            f"{widths[odd]} entries."
        )
    width = int(widths[0]) if len(widths) else 0
    if not width:
        raise DataError(f"{where}: vectors must have at least one entry, but have none.")
    data = _numbers(values.flatten())
    if is_dense.all():
        return data.reshape(len(array), width)
    entries = _numbers(indices.flatten())
    if sparse and not is_dense.any():
        indptr = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        return SparseRows(indptr, entries, data, width)
    out = np.zeros((len(array), width), data.dtype)
    of_dense = np.repeat(is_dense, lengths)
    out[is_dense] = data[of_dense].reshape(-1, width)
    rows = np.repeat(np.arange(len(array)), lengths)[~of_dense]
    out[rows, entries] = data[~of_dense]
    return out


def to_dense(rows: SparseRows) -> Array:
    """Sparse rows as an array; each entry must be there once."""
    out = np.zeros(rows.shape, rows.data.dtype)
    out[np.repeat(np.arange(len(rows)), np.diff(rows.indptr)), rows.indices] = rows.data
    return out


def _lengths(array: pa.ListArray) -> Array:
    return _numbers(array.value_lengths().fill_null(0))


def _numbers(array: pa.Array) -> Array:
    found: Array = array.to_numpy(zero_copy_only=False)
    return found
