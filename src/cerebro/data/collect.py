"""Rows that come one by one, gathered into columns."""

from __future__ import annotations

from typing import cast

import numpy as np

from cerebro.data.columns import Array
from cerebro.data.inputs import Input, TensorLike, as_values, tensor_to_numpy
from cerebro.errors import DataError

# In a tuple: a union of types would be made anew for each of millions of rows.
_TEXT = (str, bytes)


class RowStack:
    """Rows of one column, gathered into one array (or list, for text) as they come.

    >>> stack = RowStack(3, "column 'x'")
    >>> for row, value in enumerate([[1, 2], [3, 4]]):
    ...     stack.append(stack.check(value, row))
    >>> stack.values.tolist()
    [[1, 2], [3, 4]]
    """

    def __init__(self, rows: int, where: str) -> None:
        #: At most.
        self._rows = rows
        self._where = where
        self._array: Array | None = None
        self._list: list[str | bytes] = []
        self._count = 0
        #: Of the last value.
        self._kind: type | None = None
        self._is_tensor = False

    @property
    def values(self) -> Input:
        return self._list if self._array is None else self._array[: self._count]

    def append(self, value: Array | str | bytes) -> None:
        """Take a row that `check` gave."""
        if isinstance(value, _TEXT):
            self._list.append(value)
        else:
            if self._array is None:
                self._array = np.empty((self._rows, *value.shape), value.dtype)
            self._array[self._count] = value
        self._count += 1

    def check(self, value: object, row: int) -> Array | str | bytes:
        """A value as it is kept; DataError if it is not like those before."""
        if isinstance(value, _TEXT):
            if self._array is not None:
                raise DataError(f"{self._where} holds numbers, but item {row} is {value!r:.80}.")
            if self._list and type(value) is not type(self._list[0]):
                raise DataError(
                    f"{self._where} must be all {type(self._list[0]).__name__}, but row {row} is "
                    f"{type(value).__name__}."
                )
            return value
        array = self._as_array(value, row)
        first = self._array
        if first is not None and array.dtype == first.dtype and array.shape == first.shape[1:]:
            # Like those before, which were looked at.
            return array
        array = self._looked_at(array, value, row)
        if self._array is None and not self._list:
            return array
        if self._array is None or self._array.shape[1:] != array.shape:
            expected = "text" if self._array is None else f"shape {self._array.shape[1:]}"
            raise DataError(
                f"all items must be alike, but {self._where} has {expected} at first and "
                f"shape {array.shape} in item {row}."
            )
        if not np.can_cast(array.dtype, self._array.dtype):
            raise DataError(
                f"all items must be alike, but {self._where} has dtype {self._array.dtype} at "
                f"first and {array.dtype} in item {row}."
            )
        return array

    def _as_array(self, value: object, row: int) -> Array:
        if type(value) is not self._kind:
            # Looking for the methods of a tensor takes as long as decoding a small picture.
            self._kind, self._is_tensor = type(value), isinstance(value, TensorLike)
        if self._is_tensor:
            value = tensor_to_numpy(cast(TensorLike, value), f"{self._where}, item {row}")
        return np.asarray(value)

    def _looked_at(self, array: Array, value: object, row: int) -> Array:
        where = f"{self._where}, item {row}"
        rows = as_values(array[np.newaxis], where=where)
        if not isinstance(rows, np.ndarray):
            raise DataError(f"{where} must be a number, an array or text, but is {value!r:.80}.")
        row_values: Array = rows[0, ...]
        return row_values
