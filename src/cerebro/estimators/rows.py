"""What a transformation_fn gets: a batch that also answers like a dataset."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from cerebro.errors import UsageError

#: Methods of a dataset that concern rows beyond a batch, and what to do instead.
_REFUSED = {
    "batch": "the estimator's batch_size decides it",
    "flat_map": "prepare such rows before fit()",
    "padded_batch": "pad the columns before fit(), and give the estimator a batch_size",
    "repeat": "num_epochs of the search decides it",
    "shard": "the data are cut into shards already",
    "skip": "filter the DataFrame before fit()",
    "take": "limit the DataFrame before fit()",
    "unbatch": "rows come in batches of the estimator's batch_size",
    "window": "prepare such rows before fit()",
}


class Rows(dict[str, Any]):
    """A batch: arrays by column name, with rows on axis 0.

    It is a dict to functions that are written for batches. To those that are written for a dataset
    it has `map` and `filter`, whose functions are called once with the whole batch, columns as
    attributes or by name; `shuffle`, `prefetch` and `cache` leave it as it is, for rows are
    shuffled in every visit.

    >>> batch = Rows(x=[1, 2], y=[0, 1])
    >>> batch.shuffle(1000).map(lambda row: {"x": [2 * v for v in row.x], "y": row.y})
    {'x': [2, 4], 'y': [0, 1]}
    """

    def map(self, function: Callable[..., Any], *options: object, **named: object) -> Rows:
        """What a function makes of the batch: a mapping, or a named tuple, of columns."""
        return as_rows(function(self))

    def filter(self, function: Callable[..., Any], *options: object, **named: object) -> Rows:
        """The rows for which a function, called with the whole batch, gives true."""
        kept = [row for row, is_kept in enumerate(function(self)) if bool(is_kept)]
        return Rows({name: _taken(values, kept) for name, values in self.items()})

    def shuffle(self, *options: object, **named: object) -> Rows:
        return self

    prefetch = cache = shuffle

    def __getattr__(self, name: str) -> Any:
        if name in self:
            return self[name]
        if name in _REFUSED:
            raise UsageError(f"a transformation_fn must not call {name}(): {_REFUSED[name]}.")
        raise AttributeError(
            f"a batch has no column {name!r}. It has: {', '.join(map(str, self)) or 'none'}."
        )


def as_rows(found: object) -> Rows:
    """What a transformation gave back, as a batch."""
    if isinstance(found, Mapping):
        return Rows(found)
    fields = getattr(found, "_asdict", None)
    if callable(fields):
        return Rows(fields())
    raise UsageError(
        "a transformation_fn must return columns by name, or the dataset it was given, but "
        f"returned a {type(found).__name__}."
    )


def _taken(values: Any, rows: list[int]) -> Any:
    return [values[row] for row in rows] if isinstance(values, list) else values[rows]


class Transformation:
    """A user's transformation_fn as a function on batches."""

    def __init__(self, function: Callable[[Any], object]) -> None:
        if not callable(function):
            raise UsageError(
                f"transformation_fn must be a function, but got a {type(function).__name__}."
            )
        self.function = function

    def __call__(self, batch: Mapping[str, Any]) -> dict[str, Any]:
        """The batch, transformed."""
        return as_rows(self.function(Rows(batch)))
