"""Sources that have types already: Parquet files, Arrow tables, pandas DataFrames."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import TypeGuard

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from cerebro.data.sources.bad_rows import BadRow
from cerebro.data.sources.cells import arrow_type
from cerebro.data.sources.content import unreadable
from cerebro.data.sources.piece import Piece, check_names
from cerebro.data.sources.refusals import find_refused
from cerebro.errors import DataError


def is_table(source: object) -> TypeGuard[pa.Table]:
    """Whether a source is an Arrow table or a DataFrame; pandas need not be installed.

    >>> is_table(pa.table({"id": [1]})), is_table("train.csv")
    (True, False)
    """
    return isinstance(source, pa.Table) or _is_pandas(source)


def read_parquet(name: str, path: str, types: Mapping[str, str]) -> Piece:
    """The rows of a Parquet file, numbered from 1."""
    try:
        # Opened here: given a name, Arrow would take a directory's for that of a dataset.
        with open(path, "rb") as file:
            table = pyarrow.parquet.ParquetFile(file).read()
    except pa.ArrowException as error:
        raise DataError(f"{name} cannot be read as Parquet: {error}.") from error
    except OSError as error:
        if error.errno is not None:
            raise unreadable(name, error) from error
        raise DataError(f"{name} cannot be read as Parquet: {error}.") from error
    return from_table(name, table, types)


def from_table(name: str, source: pa.Table, types: Mapping[str, str]) -> Piece:
    """The rows of an Arrow table or a DataFrame, numbered from 1; an index is left out."""
    table = source
    if not isinstance(source, pa.Table):
        try:
            table = pa.Table.from_pandas(source, preserve_index=False)
        except (pa.ArrowException, ValueError, TypeError) as error:
            said = "; ".join(map(str, error.args))
            raise DataError(f"{name} cannot be read as a table: {said}.") from error
    if not table.num_columns:
        raise DataError(f"{name} must have a column 'id', but has none at all.")
    check_names(list(map(str, table.schema.names)), types, name)
    return _fit(name, table.replace_schema_metadata(None), types)


def _fit(name: str, table: pa.Table, types: Mapping[str, str]) -> Piece:
    """The table with the types given, without the rows that have other values."""
    bad: dict[int, BadRow] = {}
    for column, dtype in types.items():
        values = table[column]
        kind = arrow_type(dtype)
        if _is_number(values.type) != _is_number(kind):
            raise DataError(f"{name}: column {column!r} must be {dtype}, but is {values.type}.")
        for row in _misfits(values, kind):
            found = str(values[row].as_py())
            bad.setdefault(
                row,
                BadRow(
                    file=name,
                    line=row + 1,
                    column=column,
                    value=found,
                    reason=f"must be {dtype}",
                    text=_text(table, row),
                ),
            )
    keep = np.ones(table.num_rows, bool)
    keep[list(bad)] = False
    kept = table.filter(pa.array(keep)) if bad else table
    for column, dtype in types.items():
        at = kept.schema.get_field_index(column)
        kept = kept.set_column(at, column, _cast(kept[column], arrow_type(dtype)))

    def texts(lines: Iterable[int]) -> dict[int, str]:
        return {line: _text(table, line - 1) for line in lines}

    return Piece(
        name, kept, np.flatnonzero(keep) + 1, [bad[row] for row in sorted(bad)], texts=texts
    )


def _misfits(values: pa.ChunkedArray, kind: pa.DataType) -> list[int]:
    def is_read(start: int, stop: int) -> bool:
        try:
            _cast(values.slice(start, stop - start), kind)
        except pa.ArrowInvalid:
            return False
        return True

    return [] if is_read(0, len(values)) else list(find_refused(len(values), is_read))


def _cast(values: pa.ChunkedArray, kind: pa.DataType) -> pa.ChunkedArray:
    """Safe, except that floats may be rounded to shorter ones."""
    if pa.types.is_floating(kind) and (
        pa.types.is_floating(values.type) or pa.types.is_integer(values.type)
    ):
        return values.cast(kind, safe=False)
    return values.cast(kind)


def _is_number(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
    )


def _is_pandas(source: object) -> bool:
    kind = type(source)
    return kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] == "pandas"


def _text(table: pa.Table, row: int) -> str:
    return json.dumps(table.slice(row, 1).to_pylist()[0], default=str, ensure_ascii=False)
