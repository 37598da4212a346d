"""Columns whose rows differ in length: text, bytes and sparse rows."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
#: Row numbers.
Index: TypeAlias = npt.NDArray[np.int64]
#: Where whole tables are kept. Arrow's own pool asks for huge pages, and clearing those takes the
#: kernel several times as long as clearing the small pages of this one.
LARGE = pa.system_memory_pool()


# `pa.array` and `to_numpy` import pandas where they can, which takes a quarter of a second; these
# do not.


def as_index(rows: Index) -> pa.Array:
    """Row numbers as Arrow's, without a copy.

    >>> as_index(np.array([2, 0])).to_pylist()
    [2, 0]
    """
    return as_arrow(np.ascontiguousarray(rows, np.int64))


def as_arrow(flat: Array) -> pa.Array:
    """Numbers in one dimension as Arrow's, without a copy.

    >>> as_arrow(np.array([0.5, 1.0], np.float32)).type
    DataType(float)
    """
    kind = pa.from_numpy_dtype(flat.dtype)
    return pa.Array.from_buffers(kind, len(flat), [None, pa.py_buffer(flat)])


def as_text(values: Sequence[str]) -> pa.Array:
    """Text as Arrow's.

    >>> as_text(["hop", "", "per"]).to_pylist()
    ['hop', '', 'per']
    """
    encoded = [value.encode() for value in values]
    offsets = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.large_string(), len(encoded), buffers)


def as_numpy(array: pa.Array | pa.ChunkedArray) -> Array:
    """Numbers without a copy, booleans or several pieces with one.

    >>> as_numpy(pa.array([True, False, True])[1:])
    array([False,  True])
    """
    if isinstance(array, pa.ChunkedArray):
        parts = [as_numpy(chunk) for chunk in array.chunks]
        empty = np.empty(0, array.type.to_pandas_dtype())
        return parts[0] if len(parts) == 1 else np.concatenate([empty, *parts])
    data = array.buffers()[1]
    if pa.types.is_boolean(array.type):
        bits = np.frombuffer(data or b"", np.uint8)
        bits = np.unpackbits(bits, bitorder="little")
        return bits[array.offset : array.offset + len(array)].view(np.bool_)
    dtype = np.dtype(array.type.to_pandas_dtype())
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype, len(array), array.offset * dtype.itemsize)


def empty(shape: tuple[int, ...], dtype: np.dtype[Any]) -> Array:
    """An array where large tables are kept.

    >>> empty((2, 3), np.dtype("float32")).shape
    (2, 3)
    """
    size = math.prod(shape) * dtype.itemsize
    return np.frombuffer(pa.allocate_buffer(size, LARGE), np.uint8, size).view(dtype).reshape(shape)


class TextColumn:
    """Text, one `str` a row, kept in Arrow memory (on a shard: the mapped file).

    >>> TextColumn(pa.array(["a", "bc", ""], pa.large_string())).take(np.array([1, 0]))
    ['bc', 'a']
    """

    __slots__ = ("arrow",)

    def __init__(self, arrow: pa.LargeStringArray) -> None:
        self.arrow = arrow

    def __len__(self) -> int:
        return len(self.arrow)

    def __getitem__(self, row: int) -> str:
        value: str = self.arrow[row].as_py()
        return value

    def take(self, rows: Index) -> list[str]:
        values: list[str] = self.arrow.take(as_index(rows)).to_pylist()
        return values


class BytesColumn:
    """Byte strings, one a row, kept in Arrow memory (on a shard: the mapped file).

    >>> BytesColumn(pa.array([b"a", b"bc"], pa.large_binary())).take(np.array([1]))
    [b'bc']
    """

    __slots__ = ("arrow",)

    def __init__(self, arrow: pa.LargeBinaryArray) -> None:
        self.arrow = arrow

    def __len__(self) -> int:
        return len(self.arrow)

    def __getitem__(self, row: int) -> bytes:
        value: bytes = self.arrow[row].as_py()
        return value

    def take(self, rows: Index) -> list[bytes]:
        values: list[bytes] = self.arrow.take(as_index(rows)).to_pylist()
        return values


@dataclass(frozen=True, slots=True)
class SparseRows:
    """Rows of a sparse matrix in CSR form: row i is `indices[indptr[i]:indptr[i + 1]]`.

    >>> rows = SparseRows(np.array([0, 1, 1]), np.array([2]), np.array([5.0]), width=3)
    >>> rows.dense()
    array([[0., 0., 5.],
           [0., 0., 0.]])
    """

    indptr: Index
    indices: Array
    data: Array
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        return len(self.indptr) - 1, self.width

    def __len__(self) -> int:
        return len(self.indptr) - 1

    def take(self, rows: Index) -> SparseRows:
        """These rows, in this order, as a copy."""
        starts = self.indptr[rows]
        lengths = self.indptr[rows + 1] - starts
        indptr = np.zeros(len(rows) + 1, np.int64)
        np.cumsum(lengths, out=indptr[1:])
        # Entry j of the result lies in row r and comes from starts[r] + (j - indptr[r]).
        source = np.repeat(starts - indptr[:-1], lengths) + np.arange(indptr[-1])
        return SparseRows(indptr, self.indices[source], self.data[source], self.width)

    def dense(self) -> Array:
        """As an array of shape (rows, width); entries given twice add up."""
        out = np.zeros(self.shape, self.data.dtype)
        row = np.repeat(np.arange(len(self)), np.diff(self.indptr))
        np.add.at(out, (row, self.indices), self.data)
        return out


#: A column's rows: a dense array with rows on axis 0, or one of the kinds above.
Values: TypeAlias = Array | TextColumn | BytesColumn | SparseRows
