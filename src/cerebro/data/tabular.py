"""Tables in memory, as people have them: pandas, Arrow, polars, or arrays by name."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa

from cerebro.data.columns import Array, Values
from cerebro.data.conversion import concatenate, to_column
from cerebro.data.dataset import Dataset
from cerebro.data.inputs import as_table, as_values
from cerebro.data.sources.cells import suggest
from cerebro.data.writers import from_arrays
from cerebro.errors import DataError, UsageError

#: A pandas or polars DataFrame, an Arrow table, or arrays by name.
Frame: TypeAlias = Any
#: Of training shards, where nobody says how many there shall be.
_ROWS_A_SHARD, _MIN_SHARDS, MAX_DEFAULT_SHARDS = 256, 2, 8


def names_of(frame: Frame) -> list[str]:
    """The columns of a table.

    >>> names_of({"x": [1.0], "y": [2.0]}), names_of(pa.table({"x": [1]}))
    (['x', 'y'], ['x'])
    """
    if isinstance(frame, Mapping):
        return list(frame)
    if isinstance(frame, pa.Table | pa.RecordBatch):
        return list(frame.schema.names)
    columns = getattr(frame, "columns", None)
    if columns is None or not (hasattr(frame, "iloc") or hasattr(frame, "to_arrow")):
        raise UsageError(
            "a table must be a pandas or polars DataFrame, an Arrow table, or a dict of arrays by "
            f"name, but got a {type(frame).__name__}."
        )
    return list(columns)


def columns_of(
    frame: Frame, names: Sequence[str], *, where: str = "the table"
) -> dict[str, Values]:
    """Some columns of a table, checked; numbers are not copied where that can be helped.

    >>> columns_of(pa.table({"x": [[1, 2], [3, 4]], "y": [0, 1]}), ["x"])
    {'x': array([[1, 2],
           [3, 4]])}
    """
    known = names_of(frame)
    for name in names:
        if name not in known:
            shown = ", ".join(map(str, known[:30]))
            raise DataError(
                f"{where} has no column {name!r}. It has: {shown}." + suggest(name, list(known))
            )
    if isinstance(frame, Mapping):
        return {n: as_values(frame[n], where=f"{where}: column {n!r}") for n in names}
    table = _as_arrow(frame, names)
    return {n: concatenate([to_column(table[n], f"{where}: column {n!r}")]) for n in names}


def _as_arrow(frame: Frame, names: Sequence[str]) -> pa.Table:
    if isinstance(frame, pa.Table):
        return frame
    if isinstance(frame, pa.RecordBatch):
        return pa.Table.from_batches([frame])
    if hasattr(frame, "iloc"):
        try:
            return pa.Table.from_pandas(frame[list(names)], preserve_index=False)
        except pa.ArrowException as error:
            raise DataError(f"the DataFrame cannot be used as a table: {error}") from error
    return frame.to_arrow()


def with_columns(frame: Frame, found: Mapping[str, Array]) -> Frame:
    """A table of the same kind, with columns added or replaced.

    >>> with_columns({"x": [1]}, {"y": np.array([2.0])})
    {'x': [1], 'y': array([2.])}
    """
    if isinstance(frame, Mapping):
        return {**frame, **found}
    if hasattr(frame, "iloc"):
        new = {name: values if values.ndim == 1 else list(values) for name, values in found.items()}
        return frame.assign(**new)
    if isinstance(frame, pa.Table | pa.RecordBatch):
        table = _as_arrow(frame, frame.schema.names)
        kept = [name for name in table.schema.names if name not in found]
        out = table.select(kept)
        for name, values in found.items():
            out = out.append_column(name, as_arrow(values))
        return out
    return type(frame)(with_columns(frame.to_arrow(), found))


def as_arrow(values: Array) -> pa.Array:
    """An array with rows on axis 0 as Arrow has it: numbers, or lists of them at any depth.

    >>> as_arrow(np.array([[1.0, 2.0]])).type
    FixedSizeListType(fixed_size_list<item: double>[2])
    """
    flat = pa.array(np.ascontiguousarray(values).reshape(-1))
    for size in reversed(values.shape[1:]):
        flat = pa.FixedSizeListArray.from_arrays(flat, size)
    return flat


@dataclass(frozen=True, slots=True, kw_only=True)
class FrameCut:
    """Which columns of a table become a dataset, and how it is cut.

    `validation` is a fraction of the rows, or the name of a column: rows where it is true, or more
    than 0, are for validation. Without `shards`, their number follows from that of the rows.
    """

    columns: Sequence[str]
    validation: float | str | None = None
    shards: int | None = None
    seed: int = 0


def from_frame(
    path: str | os.PathLike[str], frame: Frame, cut: FrameCut, *, val: Frame | None = None
) -> Dataset:
    """Prepare a dataset from a table in memory; `val` has the validation rows, if not this one.

    >>> import tempfile
    >>> frame = {"x": np.arange(8.0), "y": np.arange(8), "held": np.arange(8) > 5}
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     data = from_frame(folder, frame, FrameCut(columns=["x", "y"], validation="held"))
    ...     data.rows("train"), data.rows("val"), list(data.schema)
    (6, 2, ['x', 'y'])
    """
    held = None if val is not None else check_validation(cut.validation)
    columns = columns_of(frame, cut.columns)
    if not isinstance(held, str):
        others = None if val is None else columns_of(val, cut.columns, where="the validation table")
        rows = len(next(iter(columns.values())))
        shards = cut.shards or default_shards(rows - round(rows * (held or 0)))
        return from_arrays(path, columns, others, shards=shards, validation=held, seed=cut.seed)
    mask = _mask(columns_of(frame, [held])[held], held)
    table = as_table(columns, split="train")
    if len(mask) != table.rows:
        raise DataError(
            f"all columns must have the same number of rows, but {held!r} has {len(mask)} and the "
            f"others {table.rows}."
        )
    train, val = table.take(np.flatnonzero(~mask)), table.take(np.flatnonzero(mask))
    shards = cut.shards or default_shards(int((~mask).sum()))
    return from_arrays(path, train, val if mask.any() else None, shards=shards, seed=cut.seed)


def check_validation(validation: object) -> float | str | None:
    """A fraction of the rows, the name of a column, or None for no validation.

    >>> check_validation(0), check_validation(0.25), check_validation("held_out")
    (None, 0.25, 'held_out')
    """
    if isinstance(validation, str) or validation is None:
        return validation
    is_number = isinstance(validation, int | float) and not isinstance(validation, bool)
    if is_number and 0 <= validation < 1:  # type: ignore[operator]
        return float(validation) or None  # type: ignore[arg-type]
    raise UsageError(
        "`0 <= validation < 1` must hold (a fraction of the rows), or it must name a column that "
        f"is true for validation rows, but got validation={validation!r}."
    )


def default_shards(rows: int) -> int:
    """How many shards rows are cut into where nobody says: it depends on nothing but their number.

    >>> default_shards(100), default_shards(1000), default_shards(10**6), default_shards(1)
    (2, 3, 8, 1)
    """
    wanted = min(max(rows // _ROWS_A_SHARD, _MIN_SHARDS), MAX_DEFAULT_SHARDS)
    return max(1, min(wanted, rows))


def _mask(values: Values, name: str) -> Array:
    if not isinstance(values, np.ndarray) or values.ndim != 1 or values.dtype.kind not in "biuf":
        raise DataError(
            f"the validation column {name!r} must hold booleans or numbers, one for each row."
        )
    found: Array = values > 0
    return found
