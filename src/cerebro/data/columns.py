"""Columns whose rows differ in length: text, bytes and sparse rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Array: TypeAlias = npt.NDArray[Any]
#: Row numbers.
Index: TypeAlias = npt.NDArray[np.int64]


def as_index(rows: Index) -> pa.Array:
    """Row numbers as Arrow's, without a copy. Not by `pa.array`, which imports pandas if it can.

    >>> as_index(np.array([2, 0])).to_pylist()
    [2, 0]
    """
    rows = np.ascontiguousarray(rows, np.int64)
    return pa.Array.from_buffers(pa.int64(), len(rows), [None, pa.py_buffer(rows)])


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
