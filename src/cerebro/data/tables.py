"""Preparing a dataset from CSV and Parquet files."""

from __future__ import annotations

import concurrent.futures
import contextlib
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cerebro.data.conversion import Cells, cast, check_same, concatenate, to_column
from cerebro.data.dataset import Dataset
from cerebro.data.inputs import Input, as_table
from cerebro.data.publication import Cut, publish
from cerebro.data.sources.arrow_csv import read_arrow
from cerebro.data.sources.cells import arrow_type, check_types, suggest
from cerebro.errors import DataError, UsageError
from cerebro.types import Split

Source: TypeAlias = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]

_GROUP_DTYPE = "float32"
_BLOCK_BYTES = 1 << 18


def from_csv(
    path: str | os.PathLike[str],
    source: Source,
    *,
    val: Source | None = None,
    test: Source | None = None,
    shards: int,
    validation: float | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    features: Mapping[str, Sequence[str]] | None = None,
    delimiter: str = ",",
) -> Dataset:
    """Prepare a dataset from CSV files whose first line names the columns.

    Numbers and booleans become tensor columns, everything else text; the type of a column is the
    narrowest that holds all its values. Every number must be there: an empty cell is an error.

    Args:
        path: Directory of the dataset. One that is there already is replaced in one step.
        source: A file, or several that follow each other.
        columns: Types that are not to be guessed: a NumPy dtype's name, "text" or "bytes".
        features: Groups of number columns to be stacked into one tensor column each, such as
            `{"x": ["height", "width"]}`; float32 unless `columns` names another dtype for "x".
        delimiter: The character between cells.

    The other arguments are those of `from_arrays`. Errors name the file and, where it is known,
    the row.
    """
    request = _Request.check(columns, features)
    if len(delimiter) != 1:
        raise UsageError(f"delimiter must be one character, but got {delimiter!r}.")

    def read(file: str) -> pa.Table:
        return _read_csv(file, request, delimiter)

    given = {Split.TRAIN: source, Split.VAL: val, Split.TEST: test}
    tables = {
        split: as_table(_read(files, read, request), split=split)
        for split, files in given.items()
        if files is not None
    }
    return publish(path, tables, Cut(shards=shards, validation=validation, seed=seed))


def from_parquet(
    path: str | os.PathLike[str],
    source: Source,
    *,
    val: Source | None = None,
    test: Source | None = None,
    shards: int,
    validation: float | None = None,
    seed: int = 0,
    columns: Mapping[str, str] | None = None,
    features: Mapping[str, Sequence[str]] | None = None,
) -> Dataset:
    """Prepare a dataset from Parquet files or directories of them.

    Numbers, booleans and lists of them that all have one length become tensor columns, strings
    text and binary values bytes columns. `columns` gives dtypes to convert to. All arguments are
    those of `from_csv`.
    """
    request = _Request.check(columns, features)
    given = {Split.TRAIN: source, Split.VAL: val, Split.TEST: test}
    tables = {
        split: as_table(_read(files, _read_parquet, request), split=split)
        for split, files in given.items()
        if files is not None
    }
    return publish(path, tables, Cut(shards=shards, validation=validation, seed=seed))


@dataclass(frozen=True, slots=True)
class _Request:
    """Which columns the caller wants, and as what."""

    columns: Mapping[str, str]
    features: Mapping[str, tuple[str, ...]]

    @classmethod
    def check(
        cls, columns: Mapping[str, str] | None, features: Mapping[str, Sequence[str]] | None
    ) -> _Request:
        types = check_types(columns)
        if features is not None and not isinstance(features, Mapping):
            raise UsageError(
                f'features must be a mapping such as {{"x": ["name"]}}, but got {features!r}.'
            )
        groups = {}
        for name, members in (features or {}).items():
            if isinstance(members, str) or not members or len(set(members)) < len(members):
                raise UsageError(
                    f"features[{name!r}] must be a list of different column names, "
                    f"but got {members!r}."
                )
            groups[name] = tuple(members)
        return cls(types, groups)

    @property
    def members(self) -> set[str]:
        return {member for members in self.features.values() for member in members}

    def dtype(self, group: str) -> str:
        return self.columns.get(group, _GROUP_DTYPE)

    def check_names(self, names: Sequence[str], where: str) -> None:
        """Raise unless a table with these columns has all that were asked for."""
        for name in names:
            if names.count(name) > 1 or not name.strip():
                raise DataError(
                    f"{where}: every column needs its own name in the first line, but got {name!r}"
                    f"{' twice' if name.strip() else ''}."
                )
        wanted = [*self.members, *(n for n in self.columns if n not in self.features)]
        for name in wanted:
            if name not in names:
                raise DataError(
                    f"{where} has no column {name!r}. It has: {', '.join(names)}."
                    + suggest(name, names)
                )
        for name in self.features:
            if name in names and name not in self.members:
                raise DataError(
                    f"{where} already has a column {name!r}: call the feature group otherwise."
                )


def _read(source: Source, read: Callable[[str], pa.Table], request: _Request) -> dict[str, Input]:
    """All files' columns, end to end."""
    files = [source] if isinstance(source, str | os.PathLike) else list(source)
    if not files:
        raise UsageError("source must name at least one file, but is empty.")
    pieces: list[dict[str, Cells]] = []
    for file in [os.fspath(file) for file in files]:
        if not os.path.exists(file):
            raise DataError(f"{file} does not exist.")
        pieces.append(_convert(read(file), request, file))
        check_same(pieces[0], pieces[-1], os.fspath(files[0]), file)
    return {name: concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


def _read_csv(file: str, request: _Request, delimiter: str) -> pa.Table:
    types = {name: arrow_type(dtype) for name, dtype in request.columns.items()}
    for group, members in request.features.items():
        types |= {m: arrow_type(request.dtype(group)) for m in members if m not in types}
    try:
        table = _parse(file, types, delimiter)
    except (pa.ArrowException, OSError, UnicodeError) as error:
        raise DataError(
            f"{file} cannot be read: {error}. If a column's type was guessed wrongly, give it "
            'with columns={"name": "float32"} (or "text").'
        ) from error
    for field in table.schema:
        if pa.types.is_binary(field.type) and field.name not in request.columns:
            raise DataError(
                f"{file}: column {field.name!r} must be UTF-8 text, but is not. Convert the file, "
                f'or keep the bytes with columns={{"{field.name}": "bytes"}}.'
            )
    return table


def _parse(file: str, types: Mapping[str, pa.DataType], delimiter: str) -> pa.Table:
    def read(*, newlines: bool, use_threads: bool) -> pa.Table:
        parse = pyarrow.csv.ParseOptions(delimiter=delimiter, newlines_in_values=newlines)
        return read_arrow(lambda: file, parse, types, use_threads=use_threads)

    def attempt(*, newlines: bool) -> pa.Table | None:
        with contextlib.suppress(pa.ArrowInvalid):
            return read(newlines=newlines, use_threads=True)
        return None

    # A quoted value may hold line breaks; looking out for them costs up to a fifth of the time.
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        looked_at = pool.submit(_has_quotes, file)
        newlines = _has_quotes(file, blocks=1)
        table = attempt(newlines=newlines)
        has_quotes = looked_at.result()
    if has_quotes != newlines:
        table = attempt(newlines=has_quotes)
    # Only the single-threaded reader knows the number of the row it complains about.
    return read(newlines=has_quotes, use_threads=False) if table is None else table


def _has_quotes(file: str, *, blocks: int | None = None) -> bool:
    """Whether there are quotes after the first line, in which no name has a line break.

    Looks at so many blocks only.
    """
    with contextlib.suppress(OSError), open(file, "rb") as source:
        if source.readline().count(b'"') % 2:
            return True
        read = iter(lambda: source.read(_BLOCK_BYTES), b"")
        return any(b'"' in block for block in itertools.islice(read, blocks))
    # Whatever is wrong with it, the reader tells.
    return True


def _read_parquet(file: str) -> pa.Table:
    # Not needed by workers, and a fifth of the time this package takes to import.
    from pyarrow import parquet

    try:
        return parquet.read_table(file)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{file} cannot be read as Parquet: {error}.") from error


def _convert(table: pa.Table, request: _Request, file: str) -> dict[str, Cells]:
    names, rows = table.schema.names, table.num_rows
    request.check_names(names, file)
    if not rows:
        raise DataError(f"{file} must have at least one row of data, but has none.")
    # What is converted is let go: its memory is used again at once.
    left = dict(zip(names, table.columns, strict=True))
    del table
    out: dict[str, Cells] = {}
    for group, members in request.features.items():
        dtype = request.dtype(group)
        stacked = np.empty((rows, len(members)), dtype)
        for position, name in enumerate(members):
            where = f"{file}: column {name!r} (features[{group!r}])"
            values = to_column(left[name], where)
            if not isinstance(values, np.ndarray) or values.ndim != 1:
                raise DataError(f"{where} must hold numbers, but is {left[name].type}.")
            stacked[:, position] = cast(values, dtype, where)
        out[group] = stacked
    for name in names:
        column = left.pop(name)
        if name not in request.members:
            where = f"{file}: column {name!r}"
            values = to_column(column, where)
            out[name] = cast(values, request.columns.get(name), where)
    return out
