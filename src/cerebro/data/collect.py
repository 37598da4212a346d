"""Rows that come one by one, gathered into columns."""

from __future__ import annotations

from typing import cast

import numpy as np

from cerebro.data.columns import Array
from cerebro.data.inputs import Input, TensorLike, as_values, tensor_to_numpy
from cerebro.errors import DataError

# In a tuple: a union of types would be made anew for each of millions of rows.
_TEXT = (str, bytes)
#: Python's own numbers: a value of the type of the first one needs no look.
_NUMBERS = (bool, int, float)


class RowStack:
    """Rows of one column, gathered into one array (or list, for text) as they come.

    A row counts once the next one is put: one that turns out bad is overwritten.

    >>> stack = RowStack(3, "column 'x'")
    >>> for row, value in enumerate([[1, 2], [3, 4]]):
    ...     stack.put(value, row)
    >>> stack.values(2).tolist()
    [[1, 2], [3, 4]]
    """

    def __init__(self, rows: int, where: str) -> None:
        #: At most.
        self._rows = rows
        self._where = where
        self._array: Array | None = None
        self._list: list[str | bytes] = []
        #: Of the first row: its dtype and shape, and its type if that is a plain number's.
        self._dtype: np.dtype[np.generic] | None = None
        self._shape: tuple[int, ...] = ()
        self._number: type | None = None
        #: Of the last one that was not like the first.
        self._kind: type | None = None
        self._is_tensor = False

    def values(self, count: int) -> Input:
        """The first so many rows."""
        return self._list[:count] if self._array is None else self._array[:count]

    def put(self, value: object, at: int, place: str | None = None) -> None:
        """Keep a value as row `at`; DataError if it is not like the others.

        Rows are put in order, the last one perhaps several times. `place` names the row in errors,
        by default its number.
        """
        array = self._array
        if array is not None:
            kind = type(value)
            if kind is self._number or (
                kind is np.ndarray
                and cast(Array, value).dtype == self._dtype
                and cast(Array, value).shape == self._shape
            ):
                array[at] = value
                return
        self._put(value, at, f"in item {at}" if place is None else place)

    def _put(self, value: object, at: int, place: str) -> None:
        if isinstance(value, _TEXT):
            self._put_text(value, at, place)
            return
        found = self._checked(value, place)
        if self._array is None:
            self._array = np.empty((self._rows, *found.shape), found.dtype)
            self._dtype, self._shape = found.dtype, found.shape
            self._number = type(value) if type(value) in _NUMBERS else None
        self._array[at] = found

    def _put_text(self, value: str | bytes, at: int, place: str) -> None:
        if self._array is not None:
            raise DataError(f"{self._where} holds numbers, but {place} it is {value!r:.80}.")
        del self._list[at:]
        if self._list and type(value) is not type(self._list[0]):
            raise DataError(
                f"{self._where} must be all {type(self._list[0]).__name__}, but {place} it is "
                f"{type(value).__name__}."
            )
        if isinstance(value, str) and not value.isascii():
            _check_text(value, self._where, place)
        self._list.append(value)

    def _checked(self, value: object, place: str) -> Array:
        array = self._as_array(value, place)
        if self._array is not None and array.dtype == self._dtype and array.shape == self._shape:
            return array
        array = self._looked_at(array, value, place)
        if self._array is None and not self._list:
            return array
        if self._array is None or self._shape != array.shape:
            expected = "text" if self._array is None else f"shape {self._shape}"
            raise DataError(
                f"all items must be alike, but {self._where} has {expected} at first and "
                f"shape {array.shape} {place}."
            )
        if not np.can_cast(array.dtype, self._array.dtype):
            raise DataError(
                f"all items must be alike, but {self._where} has dtype {self._array.dtype} at "
                f"first and {array.dtype} {place}."
            )
        return array

    def _as_array(self, value: object, place: str) -> Array:
        if type(value) is not self._kind:
            # Looking for the methods of a tensor takes as long as decoding a small picture.
            self._kind, self._is_tensor = type(value), isinstance(value, TensorLike)
        if self._is_tensor:
            value = tensor_to_numpy(cast(TensorLike, value), f"{self._where} {place}")
        return np.asarray(value)

    def _looked_at(self, array: Array, value: object, place: str) -> Array:
        where = f"{self._where} {place}"
        rows = as_values(array[np.newaxis], where=where)
        if not isinstance(rows, np.ndarray):
            raise DataError(f"{where} must be a number, an array or text, but is {value!r:.80}.")
        row_values: Array = rows[0, ...]
        return row_values


def _check_text(value: str, where: str, place: str) -> None:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where} must be text that can be stored, but {place}: {error}.") from None
