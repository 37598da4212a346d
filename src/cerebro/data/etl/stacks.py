"""Prepared rows, gathered into the columns of a shard."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeGuard

import numpy as np

from cerebro.data.collect import RowStack
from cerebro.data.inputs import Input, TensorLike
from cerebro.data.roles import ID, INPUT, LABEL, LABELS, is_label
from cerebro.errors import DataError, UsageError

#: What the first rows have in common decides what all must be like: the first may be the odd one.
_FIRST = 5

#: Number of a row, and what is wrong with it.
Rejected = list[tuple[int, DataError]]


class Stacks:
    """Takes rows as `row_prep` gives them.

    >>> stacks = Stacks(3, "train")
    >>> stacks.add(([1.0, 2.0], 0), 7, 0), stacks.finish()
    ([], [])
    >>> {name: values.tolist() for name, values in stacks.columns().items()}
    {'x': [[1.0, 2.0]], 'y': [0], 'id': [7]}
    """

    def __init__(self, rows: int, split: str) -> None:
        self._rows = rows
        self._split = split
        self._stacks: dict[str, RowStack] = {}
        #: Those of an input, a label and an id, if there are no others.
        self._usual: tuple[RowStack, RowStack, RowStack] | None = None
        self._count = 0
        #: The first rows, until there are enough of them.
        self._waiting: list[tuple[dict[str, Any], int]] = []

    def add(self, prepared: object, row_id: object, number: int) -> Rejected:
        """Take a row, all of it or nothing; raises if it is not like the others.

        Rows before it that turn out to be the odd ones are returned.
        """
        if self._usual is not None and row_id is not None and _is_usual(prepared):
            inputs, labels, ids = self._usual
            inputs.put(prepared[0], self._count, _HERE)
            labels.put(prepared[1], self._count, _HERE)
            ids.put(row_id, self._count, _HERE)
            self._count += 1
            return []
        values = named(*pair(prepared, "row_prep"))
        if row_id is not None:
            values[ID] = row_id
        if self._stacks:
            self._take(values)
            return []
        # Whoever made the values may use their memory again.
        self._waiting.append(({name: _copied(value) for name, value in values.items()}, number))
        return self.finish() if len(self._waiting) >= min(_FIRST, self._rows) else []

    def finish(self) -> Rejected:
        """No more rows come: those that turn out to be odd."""
        waiting, self._waiting = self._waiting, []
        if not waiting:
            return []
        looks = [_look(values) for values, _ in waiting]
        usual = Counter(looks).most_common(1)[0][0]
        # The first of the usual kind decides, then all are judged in their order.
        model = waiting[looks.index(usual)][0]
        where = f"{self._split} column"
        self._stacks = {name: RowStack(self._rows, f"{where} {name!r}") for name in model}
        if tuple(model) == (INPUT, LABEL, ID):
            inputs, labels, ids = self._stacks.values()
            self._usual = inputs, labels, ids
        for name, value in model.items():
            self._stacks[name].put(value, 0, _HERE)
        rejected: Rejected = []
        for values, number in waiting:
            try:
                self._take(values)
            except DataError as error:
                rejected.append((number, error))
        return rejected

    def columns(self) -> dict[str, Input]:
        return {name: stack.values(self._count) for name, stack in self._stacks.items()}

    def _take(self, values: Mapping[str, Any]) -> None:
        if values.keys() != self._stacks.keys():
            raise DataError(
                f"row_prep must give the same columns for every row, but gives "
                f"{', '.join(self._stacks)} for others and {', '.join(values)} here"
            )
        for name, value in values.items():
            self._stacks[name].put(value, self._count, _HERE)
        self._count += 1


_HERE = "here"
#: Labels that are seen to be no mappings: to look closer takes as long as all else with a row.
_PLAIN_LABELS = frozenset((bool, int, float))


def _is_usual(prepared: object) -> TypeGuard[tuple[Any, Any]]:
    """Whether this is an array and a number, which nearly all rows are."""
    return (
        type(prepared) is tuple
        and len(prepared) == 2
        and type(prepared[0]) is np.ndarray
        and type(prepared[1]) in _PLAIN_LABELS
    )


def named(inputs: Any, labels: Any) -> dict[str, Any]:
    """Inputs and labels as columns.

    >>> named([1.0], 3), named({"left": 1, "right": 2}, {"age": 3})
    ({'x': [1.0], 'y': 3}, {'left': 1, 'right': 2, 'y.age': 3})
    """
    if isinstance(inputs, Mapping):
        taken = [name for name in inputs if name == ID or is_label(str(name))]
        if taken:
            raise UsageError(
                f"inputs must not be called {ID!r}, {LABEL!r} or {LABELS}…, the names of ids and "
                f"labels, but there is {taken[0]!r}: call it otherwise."
            )
        found = dict(inputs)
    else:
        found = {INPUT: inputs}
    if isinstance(labels, Mapping):
        found |= {f"{LABELS}{name}": value for name, value in labels.items()}
    elif labels is not None:
        found[LABEL] = labels
    return found


def pair(prepared: object, method: str) -> tuple[Any, Any]:
    """What a spec's method gave, if it is an input and a label."""
    if isinstance(prepared, tuple) and len(prepared) == 2:
        return prepared
    raise DataError(
        f"{method} must return a pair (input, label), or (input, None), but returned "
        f"{type(prepared).__name__}"
    )


def _copied(value: Any) -> Any:
    if isinstance(value, str | bytes | bool | int | float):
        return value
    if isinstance(value, TensorLike):
        value = value.detach().cpu()
        return value.clone() if hasattr(value, "clone") else value
    return np.array(value)


def _look(values: Mapping[str, Any]) -> tuple[object, ...]:
    """What two rows must have in common to be stored in one column each."""
    found: list[object] = []
    for name, value in values.items():
        if isinstance(value, str | bytes):
            found += [name, type(value).__name__]
        else:
            shape = tuple(getattr(value, "shape", ()))
            found += [name, str(getattr(value, "dtype", type(value).__name__)), shape]
    return tuple(found)
