"""JSON lines: one object a line, all with the same keys, one of them `id`.

A value that is not there is written as null. The values of a column are numbers, text, true and
false, lists or objects: what most of them are, all have to be.
"""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.json

from cerebro.data.sources.bad_rows import BadRow
from cerebro.data.sources.cells import arrow_type
from cerebro.data.sources.content import Content
from cerebro.data.sources.guessing import is_rounded
from cerebro.data.sources.piece import ID, NO_LINES, Enough, Piece, check_names, show
from cerebro.data.sources.refusals import find_refused, first_refused
from cerebro.errors import DataError
from cerebro.types import Json

_BLOCK_BYTES = 1 << 20
_MAX_BLOCK_BYTES = 2**31 - 1
_REFUSALS = (pa.ArrowException, UnicodeError)
_INT64 = range(-(2**63), 2**63)


class _Line(NamedTuple):
    number: int
    text: bytes
    value: dict[str, Json]


def read_jsonl(content: Content, types: Mapping[str, str], enough: Enough | None = None) -> Piece:
    """The rows of a file of JSON lines; `id` comes first, the other columns as in the file."""
    fast = _read_fast(content, types)
    piece = _read_carefully(content, types, enough) if fast is None else fast
    names = piece.table.schema.names
    ordered = [ID, *(name for name in names if name != ID)] if ID in names else names
    check_names(ordered, types, content.name)
    return replace(piece, table=piece.table.select(ordered))


def _read_fast(content: Content, types: Mapping[str, str]) -> Piece | None:
    """None if anything is wrong or could be."""
    try:
        table = _parse(content.source(), _kinds(types))
        marks = content.marks()
    except (*_REFUSALS, OSError):
        return None
    # A value that is missing may be written as null, or its key may be missing.
    doubtful = any(column.null_count or is_rounded(column) for column in table.columns)
    if doubtful or marks.has_nuls:
        return None
    if marks.lines == table.num_rows and not marks.has_lone_returns:
        lines = np.arange(1, table.num_rows + 1, dtype=np.int64)
    else:
        lines = np.array([number for number, _ in _numbered(content)], np.int64)
    if len(lines) != table.num_rows:
        return None
    return Piece(content.name, table, lines, texts=lambda wanted: _texts(content, wanted))


def _read_carefully(content: Content, types: Mapping[str, str], enough: Enough | None) -> Piece:
    bad: list[BadRow] = []
    good = _sound(_objects(content, bad), content, types, bad)
    kinds = _kinds(types)
    texts = [line.text for line in good]

    def is_read(start: int, stop: int) -> bool:
        return _is_read(texts[start:stop], kinds)

    total = len(good) + len(bad)
    limit = total + 1 if enough is None else enough(total)
    refused = set(itertools.islice(find_refused(len(texts), is_read), limit))
    bad += [_bad_cell(content, good[number], kinds, types) for number in sorted(refused)]
    kept = [line for number, line in enumerate(good) if number not in refused]
    if not kept and not bad:
        raise DataError(f"{content.name} must have at least one row of data, but has none.")
    bad.sort(key=lambda row: row.line or 0)
    empty = pa.table({name: pa.array([], pa.null()) for name in (good[0].value if good else [ID])})
    if len(refused) == limit:
        return Piece(content.name, empty, NO_LINES, bad, total)
    try:
        table = _parse_lines([line.text for line in kept], kinds) if kept else empty
    except _REFUSALS as error:
        raise DataError(f"{content.name} cannot be read: {error}.") from error
    lines = np.array([line.number for line in kept], np.int64)
    return Piece(content.name, table, lines, bad, texts=lambda wanted: _texts(content, wanted))


def _objects(content: Content, bad: list[BadRow]) -> list[_Line]:
    """The lines that are objects with text and numbers as they should be."""
    found = []
    for number, text in _numbered(content):
        try:
            value = json.loads(text.decode(), object_pairs_hook=_without_twins)
            if not isinstance(value, dict):
                raise ValueError("it is none")
            found.append(_Line(number, text, value))
        except ValueError as error:
            shown = show(text)
            reason = f"must be a JSON object ({str(error).removesuffix('.')})"
            bad.append(
                BadRow(file=content.name, line=number, reason=reason, value=shown, text=shown)
            )
    return found


def _sound(
    lines: list[_Line], content: Content, types: Mapping[str, str], bad: list[BadRow]
) -> list[_Line]:
    """Those with the keys that most have, each with a value like most others."""
    if not lines:
        return []
    (keys, _), *_ = Counter(tuple(sorted(line.value)) for line in lines).most_common(1)
    alike = [line.value for line in lines if len(line.value) == len(keys)]
    usual = {name: _Usual.of([v[name] for v in alike if name in v], name in types) for name in keys}
    found = []
    for line in lines:
        flaw = _flaw(line.value, usual)
        if flaw is None:
            found.append(line)
            continue
        column, reason = flaw
        value = json.dumps(line.value[column]) if column in line.value else None
        bad.append(
            BadRow(
                file=content.name,
                line=line.number,
                column=column,
                reason=reason,
                value=value,
                text=show(line.text),
            )
        )
    return found


def _flaw(value: dict[str, Json], usual: Mapping[str, _Usual]) -> tuple[str, str] | None:
    for name, like in usual.items():
        if name not in value:
            return name, "is missing: write null where there is no value"
        reason = like.flaw_of(value[name])
        if reason is not None:
            return name, reason
    for name in value:
        if name not in usual:
            return name, "is in no other row"
    return None


class _Usual(NamedTuple):
    """What most values of a column are; nothing if its type is given."""

    kind: str | None
    is_whole: bool

    @classmethod
    def of(cls, cells: list[Json], is_given: bool) -> _Usual:
        there = [cell for cell in cells if cell is not None]
        if is_given or not there:
            return cls(None, False)
        (kind, _), *_ = Counter(map(_kind, there)).most_common(1)
        return cls(kind, not any(isinstance(cell, float) for cell in there))

    def flaw_of(self, cell: Json) -> str | None:
        if cell is None or self.kind is None:
            return None
        if _kind(cell) != self.kind:
            return f"must be {self.kind}, as the others are"
        # Arrow would round it, and all others with it.
        is_too_large = self.is_whole and isinstance(cell, int) and cell not in _INT64
        return "must be int64, as the others are" if is_too_large else None


def _kind(cell: Json) -> str:
    if isinstance(cell, bool):
        return "true or false"
    if isinstance(cell, int | float):
        return "a number"
    if isinstance(cell, str):
        return "text"
    return "a list" if isinstance(cell, list) else "an object"


def _bad_cell(
    content: Content, line: _Line, kinds: Mapping[str, pa.DataType], types: Mapping[str, str]
) -> BadRow:
    def is_read(names: Sequence[str]) -> bool:
        return _is_read([line.text], {name: kinds[name] for name in names}, ignore_others=True)

    name = first_refused(list(kinds), is_read) if kinds else None
    return BadRow(
        file=content.name,
        line=line.number,
        column=name,
        reason="cannot be read" if name is None else f"must be {types[name]}",
        value=show(line.text) if name is None else json.dumps(line.value.get(name)),
        text=show(line.text),
    )


def _without_twins(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    value = dict(pairs)
    if len(value) < len(pairs):
        twin = next(name for name, _ in pairs if sum(name == other for other, _ in pairs) > 1)
        raise ValueError(f"key {twin!r} is there twice")
    return value


def _numbered(content: Content) -> Iterator[tuple[int, bytes]]:
    """The lines that are not blank, with their numbers."""
    for number, text in enumerate(content.read().splitlines(), start=1):
        if text.strip():
            yield number, text


def _texts(content: Content, lines: Iterable[int]) -> dict[int, str]:
    wanted = set(lines)
    return {number: show(text) for number, text in _numbered(content) if number in wanted}


def _kinds(types: Mapping[str, str]) -> dict[str, pa.DataType]:
    # The reader has no large binary; what is text in JSON is kept as it is.
    kinds = {name: arrow_type(dtype) for name, dtype in types.items()}
    return {n: pa.binary() if pa.types.is_large_binary(k) else k for n, k in kinds.items()}


def _is_read(
    texts: Sequence[bytes], kinds: Mapping[str, pa.DataType], *, ignore_others: bool = False
) -> bool:
    try:
        _parse_lines(texts, kinds, ignore_others=ignore_others)
    except _REFUSALS:
        return False
    return True


def _parse_lines(
    texts: Sequence[bytes], kinds: Mapping[str, pa.DataType], *, ignore_others: bool = False
) -> pa.Table:
    data = b"\n".join([*texts, b""])
    longest = max(map(len, texts), default=0)
    return _parse(pa.BufferReader(data), kinds, longest=longest, ignore_others=ignore_others)


def _parse(
    source: str | pa.NativeFile,
    kinds: Mapping[str, pa.DataType],
    *,
    longest: int = 0,
    ignore_others: bool = False,
) -> pa.Table:
    block = min(max(_BLOCK_BYTES, 2 * longest + 2), _MAX_BLOCK_BYTES)
    parse = pyarrow.json.ParseOptions(
        explicit_schema=pa.schema(dict(kinds)) if kinds else None,
        unexpected_field_behavior="ignore" if ignore_others else "infer",
    )
    return pyarrow.json.read_json(
        source, read_options=pyarrow.json.ReadOptions(block_size=block), parse_options=parse
    )
