"""Arrow tables as NumPy arrays: numbers and lists of numbers at any depth; text and bytes stay."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from cerebro.data.columns import LARGE, Array, BytesColumn, TextColumn, as_numpy
from cerebro.errors import DataError

#: A NumPy array, or an Arrow array of large strings or large binaries.
Cells: TypeAlias = Array | pa.Array


def cast(values: Cells, dtype: str | None, where: str) -> Cells:
    """As `dtype`, refusing to change integers' values or to make integers of fractions."""
    if dtype is None:
        return values
    if not isinstance(values, np.ndarray) or dtype in ("text", "bytes"):
        kind = values.dtype.name if isinstance(values, np.ndarray) else _kind(values)
        if kind != dtype:
            raise DataError(f"{where} must be {dtype}, but is {kind}.")
        return values
    with np.errstate(all="ignore"):
        out = values.astype(dtype)
        if out.dtype.kind in "iub" and not np.array_equal(out, values):
            raise DataError(f"{where} holds values that are not {dtype}.")
    return out


def _kind(array: pa.Array) -> str:
    return "text" if array.type == pa.large_string() else "bytes"


def to_column(column: pa.ChunkedArray, where: str) -> Cells:
    """As a NumPy array, or as an Arrow array of large strings or large binaries."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return to_column(column.cast(kind.value_type), where)
    if column.null_count:
        missing = as_numpy(column.is_null())
        row = int(np.flatnonzero(missing)[0]) + 1
        raise DataError(
            f"{where} must have a value in every row, but row {row} (the first being 1) has none."
        )
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _combine(column.cast(pa.large_string()))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return _combine(column.cast(pa.large_binary()))
    return _to_numpy(_combine(column), where)


def _combine(column: pa.ChunkedArray) -> pa.Array:
    combined = column.combine_chunks(memory_pool=LARGE)
    # Older versions give back a ChunkedArray when there is not exactly one chunk.
    if isinstance(combined, pa.ChunkedArray):
        return pa.concat_arrays(combined.chunks)
    return combined


def _to_numpy(array: pa.Array, where: str) -> Array:
    """Numbers, or lists of numbers that all have one length, at any depth."""
    kind = array.type
    if isinstance(kind, pa.FixedShapeTensorType):
        return _to_numpy(array.storage, where).reshape(len(array), *kind.shape)
    if array.null_count:
        raise DataError(f"{where} must have no missing values inside its lists.")
    if pa.types.is_boolean(kind) or pa.types.is_integer(kind) or pa.types.is_floating(kind):
        return as_numpy(array)
    nested = (pa.types.is_list, pa.types.is_large_list, pa.types.is_fixed_size_list)
    if not any(is_kind(kind) for is_kind in nested):
        raise DataError(
            f"{where} is {kind}, which cannot be stored. Convert it to numbers or text first "
            '(in a CSV file: columns={"name": "text"}).'
        )
    lengths = as_numpy(array.value_lengths())
    if len(lengths) and (lengths != lengths[0]).any():
        row = int(np.flatnonzero(lengths != lengths[0])[0])
        raise DataError(
            f"{where}: all lists must have the same length, but the first has {lengths[0]} "
            f"values and number {row + 1} has {lengths[row]}."
        )
    inner = _to_numpy(array.flatten(), where)
    length = int(lengths[0]) if len(lengths) else 0
    return inner.reshape(len(array), length, *inner.shape[1:])


def check_same(
    first: Mapping[str, Cells],
    other: Mapping[str, Cells],
    first_file: str,
    file: str,
) -> None:
    """Raise `DataError` unless two files gave the same columns and types."""
    ours, theirs = (
        {n: (v.dtype, v.shape[1:]) if isinstance(v, np.ndarray) else v.type for n, v in t.items()}
        for t in (first, other)
    )
    if ours != theirs:
        names = sorted(n for n in ours.keys() | theirs.keys() if ours.get(n) != theirs.get(n))
        raise DataError(
            f"all files must have the same columns and types, but {first_file} and {file} "
            f"differ in: {', '.join(names)}. Give their types with columns={{...}}."
        )


def concatenate(parts: list[Cells]) -> Array | TextColumn | BytesColumn:
    """The parts end to end."""
    if isinstance(parts[0], np.ndarray):
        return np.concatenate(parts) if len(parts) > 1 else parts[0]
    whole = pa.concat_arrays(parts)
    return TextColumn(whole) if _kind(whole) == "text" else BytesColumn(whole)
