"""The files of an archive, whatever its format."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable, Generator, Iterator
from typing import BinaryIO

from cerebro.data.archive.errors import ArchiveError, reason_of
from cerebro.data.archive.members import HARMLESS_BYTES, Limits, Member
from cerebro.data.archive.opening import open_stream, redact
from cerebro.data.archive.tar import iter_tar
from cerebro.data.archive.zip import iter_zip

_HEAD_BYTES = 8
_BUFFER_BYTES = 1 << 18
_OTHER_FORMATS = {
    b"BZh": "bzip2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zstd",
    b"7z\xbc\xaf": "7z",
    b"Rar!": "rar",
}


def iter_members(
    url: str, limits: Limits | None = None, *, is_last_hope: bool = True
) -> Generator[Member]:
    """The files of an archive, which is known by its first bytes, not by its name."""
    with open_stream(url, is_last_hope=is_last_hope) as stream:
        shard = redact(url)
        try:
            head = stream.read(_HEAD_BYTES)
        except Exception as error:
            raise ArchiveError(shard, f"it cannot be read: {reason_of(error)}.") from error
        yield from _dispatch(head, stream, shard, limits or Limits())


def _dispatch(head: bytes, stream: BinaryIO, shard: str, limits: Limits) -> Iterator[Member]:
    for magic, name in _OTHER_FORMATS.items():
        if head.startswith(magic):
            raise ArchiveError(
                shard, f"shards must be tar, tar.gz or zip, but this is {name}. Pack it anew."
            )
    if not head:
        raise ArchiveError(shard, "a shard must not be empty, but this file is. Copy it again.")
    if head.startswith((b"PK\x03\x04", b"PK\x05\x06")):
        return iter_zip(stream, shard, limits)
    if stream.seekable():
        stream.seek(0)
        whole, tell = stream, stream.tell
    else:
        raw = _Whole(head, stream)
        whole, tell = io.BufferedReader(raw, _BUFFER_BYTES), raw.tell
    if head.startswith(b"\x1f\x8b"):
        return iter_tar(_Unpacked(whole, tell, limits), shard, limits)
    return iter_tar(whole, shard, limits)


class _Whole(io.RawIOBase):
    """A stream whose first bytes were taken, with them in front again."""

    def __init__(self, head: bytes, stream: BinaryIO) -> None:
        self._head = head
        self._stream = stream
        self._count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data, self._head = self._head or self._stream.read(len(buffer)), b""
        buffer[: len(data)] = data
        self._count += len(data)
        return len(data)

    def tell(self) -> int:
        return self._count


class _Unpacked:
    """What a gzip stream holds, as long as it does not grow out of proportion."""

    def __init__(self, stream: BinaryIO, tell: Callable[[], int], limits: Limits) -> None:
        self._stream = gzip.GzipFile(fileobj=stream)
        self._tell = tell
        self._max_ratio = limits.max_ratio
        self._unpacked_bytes = 0

    def read(self, size: int) -> bytes:
        data = self._stream.read(size)
        self._unpacked_bytes += len(data)
        is_large = self._unpacked_bytes > HARMLESS_BYTES
        if is_large and self._unpacked_bytes > self._max_ratio * self._tell():
            raise OSError(
                f"it may get at most {self._max_ratio} times as large when it is unpacked, but "
                "grows beyond that (raise max_ratio if that is right)"
            )
        return data
