"""From rows to predictions: a model that travels, and what it is where it arrives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from cerebro.errors import UsageError
from cerebro.estimators.weights import Array

#: Models that one process keeps loaded: of a pipeline that compares a few.
_KEPT = 4
#: A model sees so many rows at once, within these bounds, that they have about so many bytes:
#: enough to be fast, and what it makes of them stays small.
_BATCH_BYTES, _MIN_ROWS, _MAX_ROWS = 4 << 20, 32, 8192
_OPENED: dict[str, Predictor] = {}


class Predictor(Protocol):
    """A model, loaded and ready for use."""

    @property
    def model(self) -> Any:
        """The framework's own object."""
        ...

    def predict(self, columns: Mapping[str, Any]) -> dict[str, Array]:
        """What it says about rows: one array for each output, by name, in order."""
        ...

    def output_ranks(self) -> dict[str, int] | None:
        """The dimensions of each output, rows included; None where only rows would tell.

        An output of one number a row counts as one dimension.
        """
        ...


class Portable(Protocol):
    """A trained model as values: it can be sent to other processes, and written to files."""

    @property
    def kind(self) -> str: ...

    @property
    def digest(self) -> str:
        """Equal for equal models."""
        ...

    @property
    def features(self) -> tuple[str, ...]: ...

    @property
    def weights(self) -> bytes:
        """The largest part of it: the content of a safetensors file."""
        ...

    def with_weights(self, weights: bytes) -> Portable:
        """The same with others, or with none, for the way."""
        ...

    def open(self) -> Predictor:
        """Load it."""
        ...

    def to_files(self) -> dict[str, bytes]:
        """The content of the files it is kept in, by name."""
        ...


def opened(digest: str, load: Callable[[], Predictor]) -> Predictor:
    """The model of this digest, loaded once in a process, whatever the number of batches."""
    found = _OPENED.pop(digest, None) or load()
    _OPENED[digest] = found
    while len(_OPENED) > _KEPT:
        # Dictionaries keep their order: the first is the one unused for longest.
        del _OPENED[next(iter(_OPENED))]
    return found


def predicted(predictor: Predictor, columns: Mapping[str, Any]) -> dict[str, Array]:
    """What a model says about any number of rows, shown to it in batches."""
    rows = len(next(iter(columns.values())))
    row_bytes = sum(getattr(values, "nbytes", 0) for values in columns.values()) / max(1, rows)
    size = int(min(max(_BATCH_BYTES / max(1.0, row_bytes), _MIN_ROWS), _MAX_ROWS))
    if rows <= size:
        return predictor.predict(columns)
    parts = [
        predictor.predict({name: _rows(v, start, start + size) for name, v in columns.items()})
        for start in range(0, rows, size)
    ]
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _rows(values: Any, start: int, stop: int) -> Any:
    if isinstance(values, np.ndarray):
        return values[start:stop]
    return values.take(np.arange(start, min(stop, len(values))))


def flat(output: Array) -> Array:
    """An output as a column: one of a single number a row loses its second dimension."""
    return output[:, 0] if output.ndim == 2 and output.shape[1] == 1 else output


def check_are_new(
    given: Sequence[str], existing: Sequence[str], *, folds_case: bool = False
) -> None:
    """Raise if columns that were named for predictions are there already.

    >>> check_are_new(["Said"], ["said"])
    >>> check_are_new(["Said"], ["said"], folds_case=True)
    Traceback (most recent call last):
    cerebro.errors.UsageError: output columns must be new ones, but the table has 'said' already...
    """
    there = {name.casefold() if folds_case else name: name for name in map(str, existing)}
    for name in given:
        found = there.get(name.casefold() if folds_case else name)
        if found is not None:
            raise UsageError(
                f"output columns must be new ones, but the table has {found!r} already, which "
                f"would be lost: name another with set_output_columns, or drop it first."
            )


def output_columns(
    outputs: Sequence[str], labels: Sequence[str], given: Sequence[str]
) -> list[str]:
    """The columns that a model's outputs go to: those given, else named after the labels.

    >>> output_columns(["dense_1"], ["label"], [])
    ['label__output']
    >>> output_columns(["price", "size"], ["size", "price"], [])
    ['price__output', 'size__output']
    """
    if given and len(given) != len(outputs):
        raise UsageError(
            f"each of the model's {len(outputs)} outputs ({', '.join(outputs)}) needs a column, "
            f"but output_columns has {len(given)}: {', '.join(given)}."
        )
    if given:
        return list(given)
    in_order = len(labels) == len(outputs) and not set(outputs) <= set(labels)
    names = labels if in_order else outputs
    return [f"{name}__output" for name in names]
