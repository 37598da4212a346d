"""What `predict` gives for one batch after another, as columns of a shard."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from cerebro.data.roles import ID
from cerebro.data.schema import check_column_name
from cerebro.errors import DataError, UsageError

#: An array with rows on axis 0, or text or bytes, one a row.
Predicted: TypeAlias = npt.NDArray[Any] | list[str] | list[bytes]

#: The column of a prediction that has no name.
PREDICTION = "prediction"


class Predictions:
    """Gathers the predictions of one model for one shard.

    >>> found = Predictions("Net.predict")
    >>> found.add(np.array([0, 1]), rows=2)
    >>> found.add(np.array([2]), rows=1)
    >>> found.columns()
    {'prediction': array([0, 1, 2])}

    Args:
        what: Whose they are, for error messages.
    """

    def __init__(self, what: str) -> None:
        self._what = what
        self._parts: dict[str, list[Predicted]] = {}

    def add(self, found: object, rows: int) -> None:
        """Take what a batch gave: an array, or arrays and lists by name."""
        named = found if isinstance(found, Mapping) else {PREDICTION: found}
        values = {self._name(name): self._values(name, v, rows) for name, v in named.items()}
        if not values:
            raise UsageError(f"{self._what} must give at least one column, but gave none.")
        if self._parts and self._parts.keys() != values.keys():
            raise UsageError(
                f"{self._what} must give the same columns for every batch, but gave "
                f"{', '.join(self._parts)} first and {', '.join(values)} later."
            )
        for name, part in values.items():
            before = self._parts.setdefault(name, [])
            if before and _kind(before[0]) != _kind(part):
                raise UsageError(
                    f"{self._what} must give values of one kind in {name!r}, but gave "
                    f"{_kind(before[0])} first and {_kind(part)} later."
                )
            before.append(part)

    def columns(self) -> dict[str, Predicted]:
        """All rows so far, by column."""
        return {name: _join(parts) for name, parts in self._parts.items()}

    def _name(self, name: object) -> str:
        try:
            checked = check_column_name(name)
        except DataError as error:
            raise UsageError(f"{self._what}: {error}") from None
        if checked == ID:
            raise UsageError(
                f"{self._what} must leave the name {ID!r} to the ids of the rows, but gives a "
                "column of that name: call it something else."
            )
        return checked

    def _values(self, name: object, value: object, rows: int) -> Predicted:
        if isinstance(value, list | tuple) and value and isinstance(value[0], str | bytes):
            kind = type(value[0])
            if not all(isinstance(item, kind) for item in value):
                raise UsageError(f"{self._what} must give text or bytes in {name!r}, not a mix.")
            values: Predicted = list(value)
        else:
            values = self._array(name, value)
        if len(values) != rows:
            raise UsageError(
                f"{self._what} must give one entry for each row of a batch, but gave "
                f"{len(values)} for {rows} rows in {name!r}."
            )
        return values

    def _array(self, name: object, value: object) -> npt.NDArray[Any]:
        array = np.asarray(value)
        if array.dtype == np.float16:
            array = array.astype(np.float32)
        if array.dtype.kind not in "biuf" or array.ndim == 0 or array.dtype.itemsize > 8:
            raise UsageError(
                f"{self._what} must give a tensor with rows on its first axis, or a dict of such "
                f"tensors and of lists of text by name, but {name!r} is a {type(value).__name__} "
                f"of {array.dtype} with shape {list(array.shape)}."
            )
        if 0 in array.shape[1:]:
            raise UsageError(f"{self._what} must give values, but {name!r} has none in a row.")
        # A copy: memory of batches is used again.
        return np.array(array)


def _kind(values: Predicted) -> str:
    if isinstance(values, list):
        return type(values[0]).__name__
    shape = f"[{', '.join(map(str, values.shape[1:]))}]" if values.ndim > 1 else ""
    return f"{values.dtype}{shape}"


def _join(parts: list[Predicted]) -> Predicted:
    if isinstance(parts[0], list):
        return [item for part in parts for item in part]  # type: ignore[return-value]
    return np.concatenate(parts)
