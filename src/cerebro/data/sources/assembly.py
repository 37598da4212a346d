"""Pieces put together as one raw table: same columns, types that hold all values, ids unique."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from cerebro.data.columns import as_arrow, as_index, as_numpy, as_text
from cerebro.data.sources.bad_rows import BadRow, BadRows, Policy
from cerebro.data.sources.content import Positions
from cerebro.data.sources.piece import ID, Piece
from cerebro.errors import DataError


@dataclass(frozen=True, slots=True)
class RawTable:
    """The good rows of a source in their order, where each comes from, and the bad ones.

    Numbers that are missing in a file are null here. Lines count from 1; where a source has none
    (Parquet, DataFrames), they are the numbers of rows.
    """

    table: pa.Table
    #: The sources' names, without credentials.
    files: tuple[str, ...]
    #: For every row the position of its source in `files`, and its line there.
    file_numbers: Positions
    lines: Positions
    bad: BadRows

    def __len__(self) -> int:
        return int(self.table.num_rows)

    @property
    def rows_in(self) -> int:
        """How many rows were read, good and bad."""
        return len(self) + len(self.bad)

    def where(self, row: int) -> str:
        """Where a row comes from, as `file:line`."""
        return f"{self.files[self.file_numbers[row]]}:{self.lines[row]}"

    def with_places(self, file: str, line: str) -> pa.Table:
        """The table with two more columns of these names that say where each row comes from."""
        numbers = as_arrow(self.file_numbers.astype(np.int32))
        names = pa.DictionaryArray.from_arrays(numbers, as_text(self.files))
        return self.table.append_column(file, names).append_column(line, as_index(self.lines))


def assemble(pieces: list[Piece], types: Mapping[str, str], bad: BadRows) -> RawTable:
    """The pieces end to end, without rows whose ids are missing or there already."""
    table = pa.concat_tables(_alike(pieces))
    raw = RawTable(
        table=_narrow(table, types),
        files=tuple(piece.name for piece in pieces),
        file_numbers=np.repeat(np.arange(len(pieces)), [piece.table.num_rows for piece in pieces]),
        lines=np.concatenate([piece.lines for piece in pieces]),
        bad=bad,
    )
    if not raw.rows_in:
        raise DataError(f"{raw.files[0]} must have at least one row of data, but has none.")
    raw = _without_bad_ids(raw, pieces)
    bad.check(raw.rows_in)
    return raw


def _narrow(table: pa.Table, types: Mapping[str, str]) -> pa.Table:
    """Half precision, which Arrow's readers do not know."""
    for name in (name for name, dtype in types.items() if dtype == "float16"):
        column = table[name]
        missing = as_numpy(column.is_null())
        with np.errstate(over="ignore"):
            halves = column.to_numpy().astype(np.float16)
        at = table.schema.get_field_index(name)
        table = table.set_column(at, name, pa.array(halves, mask=missing))
    return table


def _alike(pieces: list[Piece]) -> Iterator[pa.Table]:
    """The tables with the columns in the order of the first, and types that hold all values."""
    first = pieces[0]
    names = first.table.schema.names
    kinds = {name: first.table.schema.field(name).type for name in names}
    for piece in pieces[1:]:
        if set(piece.table.schema.names) != set(names):
            raise _difference(first, piece, set(names) ^ set(piece.table.schema.names))
        for name in names:
            kind = _common(kinds[name], piece.table.schema.field(name).type)
            if kind is None:
                raise _difference(first, piece, {name})
            kinds[name] = kind
    for piece in pieces:
        try:
            yield piece.table.select(names).cast(pa.schema(kinds))
        except pa.ArrowInvalid as error:
            raise DataError(
                f"{piece.name} has whole numbers that are too large to be stored with the "
                f"fractions of another file: {error}. Give types with columns={{...}}."
            ) from error


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    if one == other or pa.types.is_null(other):
        return one
    if pa.types.is_null(one):
        return other
    return pa.float64() if {one, other} == {pa.int64(), pa.float64()} else None


def _difference(first: Piece, other: Piece, names: set[str]) -> DataError:
    return DataError(
        f"all files must have the same columns and types, but {first.name} and {other.name} "
        f"differ in: {', '.join(sorted(names))}. Give their types with columns={{...}}."
    )


def _without_bad_ids(raw: RawTable, pieces: list[Piece]) -> RawTable:
    flaws = _bad_ids(raw)
    if not flaws:
        return raw
    rows = np.array(list(flaws))
    texts: dict[tuple[int, int], str] = {}
    if raw.bad.policy == Policy.QUARANTINE:
        for number in np.unique(raw.file_numbers[rows]):
            lines = raw.lines[rows[raw.file_numbers[rows] == number]].tolist()
            found = pieces[number].texts(lines)
            texts |= {(int(number), line): text for line, text in found.items()}
    for row, reason in flaws.items():
        number, line = int(raw.file_numbers[row]), int(raw.lines[row])
        value = raw.table[ID][row].as_py()
        raw.bad.add(
            BadRow(
                file=raw.files[number],
                line=line,
                column=ID,
                value=None if value is None else str(value),
                reason=reason,
                text=texts.get((number, line)),
            )
        )
    order = {name: number for number, name in enumerate(raw.files)}
    raw.bad.rows.sort(key=lambda bad: (order[bad.file], bad.line or 0))
    keep = np.ones(len(raw), bool)
    keep[rows] = False
    return replace(
        raw,
        table=raw.table.filter(pa.array(keep)),
        file_numbers=raw.file_numbers[keep],
        lines=raw.lines[keep],
    )


def _bad_ids(raw: RawTable) -> dict[int, str]:
    """The rows whose ids are missing or there already, with the reason."""
    ids = raw.table[ID]
    if pa.types.is_null(ids.type):
        return dict.fromkeys(range(len(raw)), "must have a value")
    if not _is_id(ids.type):
        raise DataError(
            f"{raw.files[0]}: column {ID!r} must hold whole numbers or text, but is {ids.type}. "
            f'Read it as text with columns={{"{ID}": "text"}}.'
        )
    if pa.types.is_integer(ids.type) and not ids.null_count:
        values = as_numpy(ids)
        if (values[1:] > values[:-1]).all():
            return {}
    missing = as_numpy(ids.is_null())
    flaws = {int(row): "must have a value" for row in np.flatnonzero(missing)}
    # Numbers for the values, in the order in which they come, and the first row of each.
    codes = as_numpy(ids.combine_chunks().dictionary_encode().indices.fill_null(-1))
    _, first, which = np.unique(codes, return_index=True, return_inverse=True)
    firsts = first[which]
    for row in np.flatnonzero((firsts != np.arange(len(codes))) & ~missing):
        flaws[int(row)] = (
            f"must be another one in every row (it is that of {raw.where(firsts[row])})"
        )
    return dict(sorted(flaws.items()))


def _is_id(kind: pa.DataType) -> bool:
    if pa.types.is_dictionary(kind):
        kind = kind.value_type
    texts = (pa.types.is_string, pa.types.is_large_string, pa.types.is_string_view)
    return bool(pa.types.is_integer(kind) or any(is_text(kind) for is_text in texts))
