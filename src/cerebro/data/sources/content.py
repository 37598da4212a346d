"""The bytes of one text file: on disk, or in memory once unpacked."""

from __future__ import annotations

import gzip
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from cerebro.errors import DataError

_BLOCK_BYTES = 1 << 18
BOM = b"\xef\xbb\xbf"
_NEWLINE, _RETURN, _QUOTE = b'\n\r"'

Positions: TypeAlias = npt.NDArray[np.int64]

#: First bytes -> what a file is that begins with them.
_MAGIC = {
    b"\x1f\x8b": "gzip-compressed: let its name end in .gz",
    b"PK\x03\x04": "a zip archive: unpack it first",
    b"PAR1": "a Parquet file: let its name end in .parquet",
    b"\xff\xfe": "UTF-16 text: convert it with `iconv -f utf-16 -t utf-8`",
    b"\xfe\xff": "UTF-16 text: convert it with `iconv -f utf-16 -t utf-8`",
}


@dataclass(frozen=True, slots=True)
class Marks:
    """Which bytes occur in a text, as far as they matter for finding its lines."""

    newlines: int
    is_ended: bool
    has_quotes: bool
    #: Whether a carriage return ends a line by itself.
    has_lone_returns: bool
    has_nuls: bool

    @property
    def lines(self) -> int:
        return self.newlines + (not self.is_ended)


@dataclass(frozen=True, slots=True)
class Content:
    """One text file. `name` is what errors call it; `data` is None while it is on disk only."""

    name: str
    path: str
    data: bytes | None = None

    @classmethod
    def open(cls, name: str, path: str, *, is_gzip: bool) -> Content:
        """The file, unpacked into memory if it is compressed; `DataError` if it cannot be text."""
        content = cls(name, path, _unpack(name, path) if is_gzip else None)
        head = content.head(4)
        for magic, kind in _MAGIC.items():
            if head.startswith(magic):
                raise DataError(f"{name} must be UTF-8 text, but is {kind}.")
        return content

    def source(self) -> str | pa.NativeFile:
        """As Arrow's readers take it."""
        return self.path if self.data is None else pa.BufferReader(self.data)

    def read(self) -> bytes:
        """All bytes, without the mark some programs put at the beginning of UTF-8."""
        data = self.data if self.data is not None else self.head(-1)
        return data.removeprefix(BOM)

    def head(self, size: int) -> bytes:
        """The first bytes; all for -1."""
        if self.data is not None:
            return self.data if size < 0 else self.data[:size]
        try:
            with open(self.path, "rb") as file:
                return file.read(size)
        except OSError as error:
            raise unreadable(self.name, error) from error

    def marks(self, start: int = 0) -> Marks:
        """Look at every byte from an offset on, once."""
        newlines = lone_returns = 0
        last = b"\n"
        quotes = nuls = False
        for block in self._blocks(start):
            newlines += int(np.count_nonzero(np.frombuffer(block, np.uint8) == _NEWLINE))
            if b"\r" in block:
                lone_returns += block.count(b"\r") - block.count(b"\r\n")
            if last == b"\r" and block.startswith(b"\n"):
                lone_returns -= 1
            last = block[-1:]
            quotes = quotes or b'"' in block
            nuls = nuls or b"\0" in block
        return Marks(newlines, last == b"\n", quotes, lone_returns > 0, nuls)

    def _blocks(self, start: int) -> Iterator[bytes]:
        if self.data is not None:
            for at in range(start, len(self.data), _BLOCK_BYTES):
                yield self.data[at : at + _BLOCK_BYTES]
            return
        with open(self.path, "rb", buffering=0) as file:
            file.seek(start)
            while block := file.read(_BLOCK_BYTES):
                yield block


def unreadable(name: str, error: OSError) -> DataError:
    """Why the operating system does not let us read a source."""
    if isinstance(error, FileNotFoundError):
        return DataError(f"{name} does not exist.")
    if isinstance(error, IsADirectoryError):
        return DataError(
            f"a source must be a file, but {name} is a directory. "
            f"Name the files in it, such as {os.path.join(name, '*.csv')}."
        )
    return DataError(f"{name} cannot be read: {error.strerror or error}.")


def _unpack(name: str, path: str) -> bytes:
    try:
        with gzip.open(path) as file:
            return file.read()
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise DataError(f"{name} must be a whole gzip file, but is not: {error}.") from error
    except OSError as error:
        raise unreadable(name, error) from error


def record_lines(data: bytes, delimiter: str) -> Positions | None:
    """The line at which each record begins, blank ones left out; None if a quote is out of place.

    Quotes are in place if they open at the beginning of a cell and close at the end of one, with
    pairs of them for a quote itself: then, and only then, is what lies between them plain to all.

    >>> record_lines(b'id,a\\n1,"x\\ny"\\n\\n2,z', ",")
    array([1, 2, 5])
    >>> record_lines(b'id,a\\n1,"x"y\\n', ",") is None
    True
    """
    text = np.frombuffer(data, np.uint8)
    quotes = np.flatnonzero(text == _QUOTE)
    if not _are_in_place(text, quotes, ord(delimiter)):
        return None
    ends = np.flatnonzero((text == _NEWLINE) | (text == _RETURN))
    # The first byte of \r\n ends no line of its own.
    pairs = (text[ends[:-1]] == _RETURN) & (text[ends[1:]] == _NEWLINE) & (np.diff(ends) == 1)
    inside = np.searchsorted(quotes, ends) % 2 == 1
    is_end = ~inside
    is_end[:-1] &= ~pairs
    counted = np.ones(len(ends), bool)
    counted[:-1] = ~pairs
    last = ends[is_end]
    starts = np.concatenate(([0], last + 1))
    stops = np.concatenate((last, [len(text)]))
    stops[:-1] -= (
        (stops[:-1] > starts[:-1])
        & (text[stops[:-1] - 1] == _RETURN)
        & (text[stops[:-1]] == _NEWLINE)
    )
    lines = 1 + np.searchsorted(ends[counted], starts)
    return np.asarray(lines[stops > starts], np.int64)


def _are_in_place(text: npt.NDArray[np.uint8], quotes: Positions, delimiter: int) -> bool:
    if len(quotes) % 2:
        return False
    opening, closing = quotes[::2], quotes[1::2]
    # As long as a file is sound, a pair of quotes in a value closes it and opens it again.
    again = opening[1:] == closing[:-1] + 1
    borders = np.zeros(256, bool)
    borders[[delimiter, _NEWLINE, _RETURN]] = True
    begins = (opening == 0) | borders[text[opening - 1]]
    stops = closing == len(text) - 1
    stops[:] |= borders[text[np.minimum(closing + 1, len(text) - 1)]]
    begins[1:] |= again
    stops[:-1] |= again
    return bool(begins.all() and stops.all())
