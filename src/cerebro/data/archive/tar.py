"""Tar archives as streams: every member once, in order, and no damage passed over.

`tarfile` ends quietly at a damaged or missing header, which would lose samples without a word.
Here an archive must go on to its end mark. POSIX (ustar, pax) and GNU headers are understood.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

from cerebro.data.archive.errors import ArchiveError, reason_of
from cerebro.data.archive.members import Limits, Member, too_large

_BLOCK = 512
_ZERO = bytes(_BLOCK)
# Read at most this much at once: a declared size is a claim, and memory is given as it comes true.
_CHUNK = 16 << 20
# Long names and pax records; real ones have a few hundred bytes.
_MAX_HEADER_BYTES = 1 << 20
# Zeros behind the end mark; tar pads to 10 KiB unless told otherwise.
_MAX_PADDING = 64 << 20

_FILES = {b"0", b"\0", b"7"}
_DIRECTORY = b"5"
# GNU: long name, long link; pax: of one member, of all.
_EXTENSIONS = {b"L", b"K", b"x", b"X", b"g"}
_SPARSE = b"S"
_REFUSED = {
    b"1": "a hard link",
    b"2": "a symbolic link",
    b"3": "a device",
    b"4": "a device",
    b"6": "a pipe",
}


class Readable(Protocol):
    """What a tar is read from."""

    def read(self, size: int, /) -> bytes: ...


def iter_tar(stream: Readable, shard: str, limits: Limits) -> Iterator[Member]:
    """The files of a tar. Raises `ArchiveError` where it is damaged or ends too early."""
    source = _Source(stream, shard)
    while True:
        source.member = None
        offset = source.offset
        block = source.read(_BLOCK)
        if not block:
            raise source.error(
                "an archive must close with an end mark, but there is none: it is cut off, or its "
                "writer was not closed. Copy or write it again."
            )
        if block == _ZERO:
            source.read_padding()
            return
        header = _read_header(source, block)
        if header is None:
            continue
        source.member = header.name
        fault = header.fault
        if fault is None and header.size > limits.max_member_bytes:
            fault = too_large(header.size, limits)
        if fault is None:
            data = source.read_exactly(header.size)
            source.skip(-header.size % _BLOCK)
            yield Member(header.name, offset, data)
        else:
            source.skip(header.size + -header.size % _BLOCK)
            yield Member(header.name, offset, fault=fault)


@dataclass(slots=True)
class _Header:
    name: str
    size: int
    fault: str | None = None


@dataclass(slots=True)
class _Extension:
    """What extended headers say about the member behind them."""

    name: str | None = None
    size: int | None = None
    fault: str | None = None

    def add(self, source: _Source, kind: bytes, data: bytes) -> None:
        if kind == b"L":
            self.name = _text(source, data.rstrip(b"\0"))
        elif kind in (b"x", b"X"):
            records = _parse_pax(source, data)
            if "path" in records:
                self.name = _text(source, records["path"])
            if "size" in records:
                self.size = _pax_size(source, records["size"])
            if any(record.startswith("GNU.sparse.") for record in records):
                self.fault = _refusal("a sparse file")


class _Source:
    """A stream that knows where it is, and whose errors say so."""

    def __init__(self, stream: Readable, shard: str) -> None:
        self._stream = stream
        self._shard = shard
        self.offset = 0
        self.member: str | None = None

    def error(self, reason: str) -> ArchiveError:
        return ArchiveError(self._shard, reason, self.member, self.offset)

    def read(self, size: int) -> bytes:
        """So many bytes, or fewer at the end."""
        try:
            data = self._stream.read(size)
            while len(data) < size and (more := self._stream.read(size - len(data))):
                data += more
        except Exception as error:
            # Whatever a client of a remote store raises, too.
            raise self.error(
                f"it cannot be read on: {reason_of(error)}. Copy or write it again."
            ) from error
        self.offset += len(data)
        return data

    def read_exactly(self, size: int) -> bytes:
        parts = []
        left = size
        while left:
            part = self.read(min(left, _CHUNK))
            parts.append(part)
            left -= len(part)
            if left and len(part) < _CHUNK:
                raise self.error(
                    f"{size} bytes must follow, but the archive ends {left} bytes too early: it "
                    "is cut off. Copy or write it again."
                )
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def skip(self, size: int) -> None:
        while size:
            size -= len(self.read_exactly(min(size, _CHUNK)))

    def read_padding(self) -> None:
        """Read on to the end, which also checks the sum that closes a gzip stream."""
        begin = self.offset
        while block := self.read(1 << 16):
            if block.strip(b"\0"):
                raise self.error(
                    "nothing may follow the end mark, but data do: are several archives joined in "
                    "one file? Name them one by one instead."
                )
            if self.offset - begin > _MAX_PADDING:
                raise self.error(f"more than {_MAX_PADDING} zeros follow the end mark.")


def _read_header(source: _Source, block: bytes) -> _Header | None:
    """The next member with what extended headers say about it; None for a directory."""
    extension = _Extension()
    while True:
        _check_block(source, block)
        kind = block[156:157]
        size = _number(source, block[124:136])
        if kind not in _EXTENSIONS:
            break
        extension.add(source, kind, _read_extension(source, size))
        block = source.read_exactly(_BLOCK)
    name = _ustar_name(source, block) if extension.name is None else extension.name
    size = size if extension.size is None else extension.size
    source.member = name
    if kind == _DIRECTORY or (kind == b"\0" and name.endswith("/")):
        source.skip(size + -size % _BLOCK)
        return None
    if kind in _REFUSED:
        return _Header(name, 0, _refusal(_REFUSED[kind]))  # no data follow, whatever is declared
    if kind == _SPARSE:
        raise source.error(_refusal("a sparse file"))
    if kind not in _FILES:
        raise source.error(f"type {kind!r} of a header is not known: the archive is damaged.")
    return _Header(name, size, extension.fault)


def _refusal(what: str) -> str:
    return (
        f"a sample must be made of plain files, but this is {what}. Pack the file itself, for "
        "instance with `tar --dereference --hard-dereference`."
    )


def _check_block(source: _Source, block: bytes) -> None:
    if len(block) < _BLOCK:
        raise source.error("a header is cut off. Copy or write the archive again.")
    declared = _number(source, block[148:156])
    if declared != sum(block) - sum(block[148:156]) + 8 * 32:
        raise source.error(
            "the sum of a header is wrong: the archive is damaged, or no tar. Copy or write it "
            "again."
        )


def _number(source: _Source, field: bytes) -> int:
    """A number of a header: octal digits, or binary where they do not suffice."""
    if field[0] == 0x80:
        return int.from_bytes(field[1:], "big")
    digits = field.split(b"\0", 1)[0].strip(b" ")
    if not digits:
        return 0
    try:
        if digits.isdigit():
            return int(digits, 8)
    except ValueError:
        pass
    raise source.error(f"a number in a header is damaged: {field!r}.")


def _ustar_name(source: _Source, block: bytes) -> str:
    name = block[:100].split(b"\0", 1)[0]
    # GNU's magic has a space there, and other things in the prefix.
    prefix = block[345:500].split(b"\0", 1)[0] if block[257:263] == b"ustar\0" else b""
    return _text(source, prefix + b"/" + name if prefix else name)


def _text(source: _Source, name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError as error:
        raise source.error(f"names must be UTF-8, but one is {name[:100]!r}.") from error


def _read_extension(source: _Source, size: int) -> bytes:
    if size > _MAX_HEADER_BYTES:
        raise source.error(
            f"an extended header may have {_MAX_HEADER_BYTES} bytes, but declares {size}."
        )
    data = source.read_exactly(size) if size else b""
    source.skip(-size % _BLOCK)
    return data


def _parse_pax(source: _Source, data: bytes) -> dict[str, bytes]:
    """Records such as `18 path=some-name\\n`, each with its own length in front."""
    records: dict[str, bytes] = {}
    data = data.rstrip(b"\0")
    position = 0
    while position < len(data):
        digits = data[position : position + 20].split(b" ", 1)[0]
        end = position + (int(digits) if digits.isdigit() else 0)
        name, equals, value = data[position + len(digits) + 1 : end - 1].partition(b"=")
        if not equals or end > len(data) or data[end - 1 : end] != b"\n":
            raise source.error("an extended header is damaged.")
        records[name.decode("utf-8", "replace")] = value
        position = end
    return records


def _pax_size(source: _Source, value: bytes) -> int:
    if not value.isdigit() or len(value) > 19:
        raise source.error(f"a size in an extended header is damaged: {value[:40]!r}.")
    return int(value)
