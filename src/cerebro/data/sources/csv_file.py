"""CSV files: at Arrow's speed where nothing is wrong, record by record where something is.

The types of columns that are not given are guessed by Arrow, with two rules on top, which are the
same for every policy:

- A column is one of numbers, although Arrow calls it text, if at least 99 % of its values are
  numbers: the others are bad.
- A column of whole numbers is int64, although Arrow would round those that are too large: they are
  bad.
"""

from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.csv

from cerebro.data.sources.arrow_csv import read_arrow
from cerebro.data.sources.bad_rows import BadRow
from cerebro.data.sources.cells import MISSING, arrow_type
from cerebro.data.sources.content import BOM, Content, Marks, Positions, record_lines
from cerebro.data.sources.guessing import is_rounded, mend_guess
from cerebro.data.sources.piece import NO_LINES, Enough, Piece, check_names, show
from cerebro.data.sources.records import Record, count_lines, split_records
from cerebro.data.sources.refusals import find_refused, first_refused
from cerebro.errors import DataError, UsageError

_HEAD_BYTES = 1 << 20
_BLOCK_BYTES = 1 << 20  # Arrow's own
_MAX_BLOCK_BYTES = 2**31 - 1
_REFUSALS = (pa.ArrowException, UnicodeError)


def read_csv(
    content: Content, types: Mapping[str, str], delimiter: str = ",", enough: Enough | None = None
) -> Piece:
    """The rows of a CSV file whose first line names the columns."""
    if len(delimiter) != 1 or not delimiter.isascii() or delimiter in '"\r\n\0':
        raise UsageError(
            f"delimiter must be one ASCII character, no quote or line end, but got {delimiter!r}."
        )
    header = _read_header(content, types, delimiter)
    cells = _Cells(header.names, types, delimiter)
    fast = cells.read_fast(content, header)
    if fast is None:
        return _read_carefully(content, cells, enough)
    return Piece(content.name, *fast, texts=lambda lines: _texts(content, delimiter, lines))


@dataclass(frozen=True, slots=True)
class _Header:
    names: list[str]
    #: Offset and line of its end.
    stop: int
    line: int


def _read_header(content: Content, types: Mapping[str, str], delimiter: str) -> _Header:
    head = content.head(_HEAD_BYTES)
    first = next(split_records(head.removeprefix(BOM), delimiter), None)
    if first is not None and len(first.text) >= _HEAD_BYTES - len(BOM):
        head = content.head(-1)
        first = next(split_records(head.removeprefix(BOM), delimiter), None)
    if first is None:
        raise DataError(f"{content.name}: the first line must name the columns, but is empty.")
    where = f"{content.name}:{first.line}"
    if first.flaw is not None:
        raise DataError(f"{where}: the first line must name the columns, but {first.flaw}.")
    try:
        names = _Cells([], {}, delimiter).of(first.text)
    except _REFUSALS:
        raise DataError(
            f"{where}: the first line must be UTF-8 text, but is {show(first.text)[:80]!r}."
        ) from None
    try:
        check_names(names, types, where)
    except DataError as error:
        raise DataError(f"{error}{_delimiter_hint(names, delimiter)}") from None
    stop = head.find(first.text) + len(first.text)
    return _Header(names, stop, first.line + count_lines(first.text, 0, len(first.text)))


def _delimiter_hint(names: list[str], delimiter: str) -> str:
    if len(names) > 1:
        return ""
    other = [sign for sign in ";\t|," if sign != delimiter and sign in names[0]]
    return f" Perhaps the file needs delimiter={other[0]!r}." if other else ""


@dataclass(frozen=True, slots=True)
class _Cells:
    """How to read cells: their columns' names, the types given for some, and what is in between."""

    names: list[str]
    types: Mapping[str, str]
    delimiter: str

    def of(self, text: bytes) -> list[str]:
        """The cells of one record, as text."""
        options = pyarrow.csv.ReadOptions(
            autogenerate_column_names=True, block_size=_block_bytes(len(text))
        )
        parse = pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True)
        kinds = {
            f"f{number}": pa.string() for number in range(text.count(self.delimiter.encode()) + 1)
        }
        table = pyarrow.csv.read_csv(
            pa.BufferReader(text + b"\n"),
            read_options=options,
            parse_options=parse,
            convert_options=pyarrow.csv.ConvertOptions(column_types=kinds),
        )
        return [column[0].as_py() for column in table.columns]

    def read_fast(self, content: Content, header: _Header) -> tuple[pa.Table, Positions] | None:
        """The table and its rows' lines; None if anything is wrong or could be."""
        has_quotes = b'"' in content.head(_HEAD_BYTES)[header.stop :]
        try:
            with concurrent.futures.ThreadPoolExecutor(1) as pool:
                looked_at = pool.submit(content.marks, header.stop)
                table = self._read(content, newlines=has_quotes)
                marks = looked_at.result()
            if marks.has_quotes and not has_quotes:
                table = self._read(content, newlines=True)
        except (*_REFUSALS, OSError):
            return None
        if marks.has_nuls or self._is_doubtful(table) or table.schema.names != self.names:
            return None
        lines = _lines(content, header, marks, table.num_rows, self.delimiter)
        return None if lines is None else (table, lines)

    def _is_doubtful(self, table: pa.Table) -> bool:
        return any(
            pa.types.is_binary(field.type)
            or mend_guess(table[field.name]) is not None
            or is_rounded(table[field.name])
            for field in table.schema
            if field.name not in self.types
        )

    def _read(self, content: Content, *, newlines: bool) -> pa.Table:
        kinds = {name: arrow_type(dtype) for name, dtype in self.types.items()}
        # A quoted value may hold line breaks; looking out for them costs a fifth of the time.
        parse = pyarrow.csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=newlines)
        return read_arrow(content.source, parse, kinds)

    def read_records(
        self,
        texts: Sequence[bytes],
        kinds: Mapping[str, pa.DataType],
        only: Sequence[str] | None = None,
    ) -> pa.Table:
        """Records without a header, of which each has the right number of columns."""
        if not texts:
            return pa.table({name: pa.array([], kinds.get(name, pa.null())) for name in self.names})
        data = b"\n".join([*texts, b""])
        longest = max(map(len, texts), default=0)
        return pyarrow.csv.read_csv(
            pa.BufferReader(data),
            read_options=pyarrow.csv.ReadOptions(
                column_names=self.names, block_size=_block_bytes(longest)
            ),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter=self.delimiter, newlines_in_values=True
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types=dict(kinds), null_values=MISSING, include_columns=list(only or [])
            ),
        )


def _block_bytes(longest: int) -> int:
    """Room for two of the longest records, which Arrow needs."""
    return min(max(_BLOCK_BYTES, 2 * longest + 2), _MAX_BLOCK_BYTES)


def _lines(
    content: Content, header: _Header, marks: Marks, rows: int, delimiter: str
) -> Positions | None:
    """The line of each row; None if a quote is out of place."""
    if not marks.has_quotes and not marks.has_lone_returns and marks.lines == rows + 1:
        return np.arange(header.line + 1, header.line + 1 + rows, dtype=np.int64)
    lines = record_lines(content.read(), delimiter)
    return lines[1:] if lines is not None and len(lines) == rows + 1 else None


def _texts(content: Content, delimiter: str, lines: Iterable[int]) -> dict[int, str]:
    wanted = set(lines)
    records = split_records(content.read(), delimiter)
    return {record.line: show(record.text) for record in records if record.line in wanted}


def _read_carefully(content: Content, cells: _Cells, enough: Enough | None = None) -> Piece:
    """Every record by itself: the good ones, and for each bad one the place and the reason."""
    records = list(split_records(content.read(), cells.delimiter))[1:]
    bad: list[BadRow] = []
    good: list[Record] = []
    for record in records:
        flaw = _flaw(record, len(cells.names))
        if flaw is None:
            good.append(record)
        else:
            bad.append(_bad(content, record, flaw))
    texts = [record.text for record in good]
    kinds = _guess(cells, texts)

    def is_read(start: int, stop: int) -> bool:
        return _is_read(cells, texts[start:stop], kinds)

    limit = len(records) + 1 if enough is None else enough(len(records))
    refused = list(itertools.islice(find_refused(len(texts), is_read), limit))
    bad += [_bad_cell(content, cells, good[number], kinds) for number in refused]
    bad.sort(key=lambda row: row.line or 0)
    if len(refused) == limit:
        return Piece(content.name, cells.read_records([], kinds), NO_LINES, bad, len(records))
    keep = np.ones(len(texts), bool)
    keep[refused] = False
    table = cells.read_records([texts[number] for number in np.flatnonzero(keep)], kinds)
    lines = np.array([record.line for record in good], np.int64)[keep]
    return Piece(
        content.name, table, lines, bad, texts=lambda some: _texts(content, cells.delimiter, some)
    )


def _flaw(record: Record, columns: int) -> str | None:
    if record.flaw is None and record.columns != columns:
        return f"has {record.columns} columns instead of {columns}"
    return record.flaw


def _bad(content: Content, record: Record, reason: str) -> BadRow:
    shown = show(record.text)
    return BadRow(file=content.name, line=record.line, reason=reason, value=shown, text=shown)


def _bad_cell(
    content: Content, cells: _Cells, record: Record, kinds: Mapping[str, pa.DataType]
) -> BadRow:
    def is_read(names: Sequence[str]) -> bool:
        return _is_read(cells, [record.text], kinds, names)

    name = first_refused(cells.names, is_read)
    if name is None:
        return _bad(content, record, "cannot be read")
    raw = cells.read_records([record.text], {name: pa.binary()}, [name])[name][0].as_py()
    wanted = cells.types.get(name, {"double": "float64"}.get(str(kinds[name]), str(kinds[name])))
    wanted = "UTF-8 text" if wanted in ("text", "string") else wanted
    return BadRow(
        file=content.name,
        line=record.line,
        column=name,
        value=show(raw),
        reason=f"must be {wanted}" + ("" if name in cells.types else ", as the others are"),
        text=show(record.text),
    )


def _is_read(
    cells: _Cells,
    texts: Sequence[bytes],
    kinds: Mapping[str, pa.DataType],
    only: Sequence[str] | None = None,
) -> bool:
    try:
        cells.read_records(texts, kinds, only)
    except _REFUSALS:
        return False
    return True


def _guess(cells: _Cells, texts: Sequence[bytes]) -> dict[str, pa.DataType]:
    """The type of every column: given, or guessed from all sound records."""
    given = {name: arrow_type(dtype) for name, dtype in cells.types.items()}
    # As bytes, those that are given cannot keep the others from being looked at.
    table = cells.read_records(texts, dict.fromkeys(given, pa.binary()))
    kinds = {}
    for name in cells.names:
        if name in given:
            kinds[name] = given[name]
        elif pa.types.is_binary(table[name].type):
            kinds[name] = mend_guess(_as_text(table[name])) or pa.string()
        elif is_rounded(table[name]):
            raw = cells.read_records(texts, {name: pa.string()}, [name])[name]
            kinds[name] = mend_guess(raw) or table[name].type
        else:
            kinds[name] = mend_guess(table[name]) or table[name].type
    return kinds


def _as_text(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Bytes as text, those that are none replaced."""
    return pa.chunked_array([[show(cell) for cell in column.to_pylist() if cell is not None]])
