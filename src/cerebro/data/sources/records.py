"""A CSV file cut into records, one by one, with what is wrong with each. Slow and sure.

A record may span lines if a quoted cell does. Where a quote is never closed, or has text after its
end, the fault is taken to lie in the line the record begins at: that line alone is bad, and reading
goes on with the next. So one quote too many costs one row and not the rest of the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

_LINE_END = re.compile(rb"\r\n|\n|\r")


class Record(NamedTuple):
    """One record as it stands in the file, without the end of its line."""

    line: int
    text: bytes
    columns: int
    #: What is wrong with it, whatever its columns are.
    flaw: str | None = None


def split_records(data: bytes, delimiter: str) -> Iterator[Record]:
    """Every record but blank lines, the header being the first.

    >>> [record[:3] for record in split_records(b'id,a\\n1,"x\\ny"\\n\\n2,z', ",")]
    [(1, b'id,a', 2), (2, b'1,"x\\ny"', 2), (5, b'2,z', 2)]
    >>> [record.flaw for record in split_records(b'id,a\\n1,"x\\n2,y\\n', ",")]
    [None, 'has a quote that is never closed', None]
    """
    separator = delimiter.encode()
    cell_end = re.compile(rb"[\r\n" + re.escape(separator) + rb"]")
    at, line = 0, 1
    while at < len(data):
        end = _LINE_END.search(data, at)
        stop, after = end.span() if end else (len(data), len(data))
        text, lines, flaw = data[at:stop], 1, None
        columns = text.count(separator) + 1
        if b'"' in text:
            stop, columns, flaw = _quoted(data, at, stop, separator, cell_end)
            text = data[at:stop]
            end = _LINE_END.match(data, stop)
            after = end.end() if end else len(data)
            lines = count_lines(data, at, after) or 1
        if text:
            yield Record(
                line, text, columns, flaw or ("holds a NUL byte" if b"\0" in text else None)
            )
        at, line = after, line + lines


def _quoted(
    data: bytes, at: int, line_end: int, separator: bytes, cell_end: re.Pattern[bytes]
) -> tuple[int, int, str | None]:
    """Where a record with quotes ends, how many columns it has, and what is wrong with it."""
    columns = 0
    while True:
        columns += 1
        if data[at : at + 1] == b'"':
            at = _closed(data, at + 1)
            if at < 0:
                return line_end, columns, "has a quote that is never closed"
            if data[at : at + 1] not in (separator, b"\n", b"\r", b""):
                return line_end, columns, "has text after a closing quote, or a quote too many"
        else:
            found = cell_end.search(data, at)
            at = found.start() if found else len(data)
        if data[at : at + 1] != separator:
            return at, columns, None
        at += 1


def _closed(data: bytes, at: int) -> int:
    """Just behind the quote that closes a cell, or -1. Two quotes in a row stand for one."""
    while (found := data.find(b'"', at)) >= 0:
        if data[found + 1 : found + 2] != b'"':
            return found + 1
        at = found + 2
    return -1


def count_lines(data: bytes, start: int, stop: int) -> int:
    """How many lines end there, be it with \\n, \\r\\n or \\r."""
    both = data.count(b"\r\n", start, stop)
    return data.count(b"\n", start, stop) + data.count(b"\r", start, stop) - both
