"""What callers hand over (arrays, tensors, lists, sparse matrices) as checked columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias, TypeGuard, runtime_checkable

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cerebro.data.columns import (
    Array,
    BytesColumn,
    Index,
    SparseRows,
    TextColumn,
    Values,
    as_index,
    empty,
)
from cerebro.data.schema import DTYPES, Column, Kind, Schema, check_column_name
from cerebro.errors import DataError


@runtime_checkable
class TensorLike(Protocol):
    """A torch tensor, as far as it matters here."""

    def detach(self) -> TensorLike: ...

    def cpu(self) -> TensorLike: ...

    def numpy(self) -> Array: ...


class CsrLike(Protocol):
    """A SciPy CSR matrix or `SparseRows`, as far as it matters here."""

    @property
    def indptr(self) -> Array: ...

    @property
    def indices(self) -> Array: ...

    @property
    def data(self) -> Array: ...

    @property
    def shape(self) -> tuple[int, int]: ...


#: One column as a caller may give it.
Input: TypeAlias = (
    npt.ArrayLike
    | TensorLike
    | CsrLike
    | Sequence[str]
    | Sequence[bytes]
    | TextColumn
    | BytesColumn
)


@dataclass(frozen=True, slots=True)
class Table:
    """Columns of equal length and their schema."""

    columns: Mapping[str, Values]
    schema: Schema
    rows: int

    def take(self, rows: Index) -> dict[str, Values]:
        return {name: _take(values, rows) for name, values in self.columns.items()}


def as_table(columns: Mapping[str, Input], *, split: str) -> Table:
    """Check one split's columns. Dense input is referred to, not copied."""
    if not isinstance(columns, Mapping):
        is_frame = hasattr(columns, "iloc") and hasattr(columns, "columns")
        hint = " Pass {c: df[c].to_numpy() for c in df}." if is_frame else ""
        raise DataError(
            f'{split} must be a mapping of column names to data such as {{"x": x, "y": y}}, '
            f"but got {type(columns).__name__}.{hint}"
        )
    if not columns:
        raise DataError(f"{split} must have at least one column, but has none.")
    values = {
        check_column_name(name): as_values(data, where=f"{split} column {name!r}")
        for name, data in columns.items()
    }
    lengths = {name: len(column) for name, column in values.items()}
    if len(set(lengths.values())) > 1:
        raise DataError(
            f"all columns must have the same number of rows, but in {split} they have: "
            + ", ".join(f"{name} {length}" for name, length in lengths.items())
            + "."
        )
    rows = next(iter(lengths.values()))
    if rows == 0:
        raise DataError(f"{split} must have at least one row, but has none.")
    schema = {name: describe(column) for name, column in values.items()}
    return Table(values, schema, rows)


def as_values(data: Input, *, where: str) -> Values:
    """One column, checked; `where` names it in errors."""
    if isinstance(data, TextColumn | BytesColumn):
        return data
    if _is_csr(data):
        return _as_sparse(data, where)
    if isinstance(data, TensorLike):
        return _as_dense(tensor_to_numpy(data, where), where)
    if isinstance(data, Sequence) and not isinstance(data, str | bytes | bytearray | memoryview):
        return _as_listed(data, where)
    return _as_dense(np.asarray(data), where)


def _is_csr(data: object) -> TypeGuard[CsrLike]:
    # isinstance with the protocol would touch `.data`, which raises for arrays of dates.
    return hasattr(data, "indptr") and hasattr(data, "indices")


def describe(values: Values) -> Column:
    """The schema entry of a checked column."""
    if isinstance(values, TextColumn):
        return Column(kind=Kind.TEXT, dtype="text")
    if isinstance(values, BytesColumn):
        return Column(kind=Kind.BYTES, dtype="bytes")
    if isinstance(values, SparseRows):
        return Column(kind=Kind.SPARSE, dtype=values.data.dtype.name, shape=(values.width,))
    return Column(kind=Kind.TENSOR, dtype=values.dtype.name, shape=values.shape[1:])


def _take(values: Values, rows: Index) -> Values:
    if isinstance(values, TextColumn):
        return TextColumn(values.arrow.take(as_index(rows)))
    if isinstance(values, BytesColumn):
        return BytesColumn(values.arrow.take(as_index(rows)))
    if isinstance(values, SparseRows):
        return values.take(rows)
    out = empty((len(rows), *values.shape[1:]), values.dtype)
    # All rows are there; "clip" does not look twice.
    return values.take(rows, axis=0, out=out, mode="clip")


def _as_listed(data: Sequence[object], where: str) -> Values:
    """A list of str or bytes as such; anything else as numbers."""
    for kind in (str, bytes):
        if len(data) and isinstance(data[0], kind):
            return _as_text(data, kind, where)
    # Few types and many items: only where there is something to convert is each looked at.
    if any(issubclass(kind, str | bytes | TensorLike) for kind in set(map(type, data))):
        data = [_as_row(item, row, where) for row, item in enumerate(data)]
    try:
        return _as_dense(np.asarray(data), where)
    except ValueError as error:
        raise DataError(f"{where}: all rows must have the same shape: {error}.") from error


def _as_row(item: object, row: int, where: str) -> object:
    # NumPy would make text of the numbers beside it.
    if isinstance(item, str | bytes):
        raise DataError(f"{where} must be all numbers, but row {row} is {type(item).__name__}.")
    return tensor_to_numpy(item, f"{where}, row {row}") if isinstance(item, TensorLike) else item


def _as_text(
    data: Sequence[object], kind: type[str] | type[bytes], where: str
) -> TextColumn | BytesColumn:
    for row, value in enumerate(data):
        if not isinstance(value, kind):
            raise DataError(
                f"{where} must be all {kind.__name__}, but row {row} is {type(value).__name__}."
            )
    if kind is str:
        return TextColumn(_text_to_arrow(data, pa.large_string(), where))
    return BytesColumn(_text_to_arrow(data, pa.large_binary(), where))


def _text_to_arrow(data: Iterable[object], kind: pa.DataType, where: str) -> pa.Array:
    try:
        return pa.array(data, kind)
    except (pa.ArrowException, UnicodeError) as error:
        raise DataError(f"{where} cannot be stored as {kind}: {error}.") from error


def tensor_to_numpy(tensor: TensorLike, where: str) -> Array:
    try:
        return tensor.detach().cpu().numpy()
    except (TypeError, RuntimeError) as error:
        raise DataError(
            f"{where} cannot be stored: {error}. "
            f"Convert it to a dense tensor of one of: {', '.join(DTYPES)}."
        ) from error


def _as_dense(array: Array, where: str) -> Values:
    if array.ndim == 0:
        raise DataError(f"{where} must have one entry a row, but is a single value.")
    kind = _text_kind(array)
    if kind is not None:
        return _as_text(_flat(array, where).tolist(), kind, where)
    if array.dtype.name not in DTYPES:
        hint = "a list of str for text" if array.dtype == object else "another dtype"
        raise DataError(
            f"{where} has dtype {array.dtype}, which cannot be stored; pass {hint}. "
            f"Known dtypes: {', '.join(DTYPES)}."
        )
    if len(array) and 0 in array.shape:
        raise DataError(f"{where}: rows must not be empty, but have shape {array.shape[1:]}.")
    return array


def _text_kind(array: Array) -> type[str] | type[bytes] | None:
    # Text of pandas comes as an array of objects, and T is NumPy's StringDType.
    if array.dtype == object and array.size:
        first = array.flat[0]
        return str if isinstance(first, str) else bytes if isinstance(first, bytes) else None
    return str if array.dtype.kind in "UT" else bytes if array.dtype.kind == "S" else None


def _flat(array: Array, where: str) -> Array:
    if array.ndim > 1:
        raise DataError(f"{where}: text must have one value a row, but has shape {array.shape}.")
    return array


def _as_sparse(matrix: CsrLike, where: str) -> SparseRows:
    if getattr(matrix, "format", "csr") != "csr":
        raise DataError(f"{where} must be sparse by rows. Convert it with `.tocsr()`.")
    rows, width = (int(n) for n in matrix.shape)
    indptr = np.asarray(matrix.indptr, np.int64)
    indices, data = np.asarray(matrix.indices), np.asarray(matrix.data)
    if data.dtype.name not in DTYPES or data.dtype == np.bool_:
        raise DataError(
            f"{where} has dtype {data.dtype}, which cannot be stored sparsely. "
            f"Known dtypes: {', '.join(DTYPES[1:])}."
        )
    if (
        width < 1
        or indptr.shape != (rows + 1,)
        or indptr[0] != 0
        or (np.diff(indptr) < 0).any()
        or not indptr[-1] == len(indices) == len(data)
        or (len(indices) and not (indices.min() >= 0 and indices.max() < width))
    ):
        raise DataError(f"{where} is not a valid CSR matrix of shape {(rows, width)}.")
    return SparseRows(indptr, indices, data, width)
