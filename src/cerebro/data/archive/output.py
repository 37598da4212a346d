"""One shard on its way to the disk."""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import itertools
import os
import tarfile
from collections.abc import Sequence

from cerebro.data.archive.errors import quote
from cerebro.data.archive.index import IndexEntry
from cerebro.errors import DataError
from cerebro.storage.disk import Disk
from cerebro.storage.store import explain

#: Files in a tar begin at multiples of this.
BLOCK = 512

_BUFFER_BYTES = 1 << 20
_COMPRESSION = 6
_temp_numbers = itertools.count()


class ShardFile:
    """One tar on its way: a file with a passing name until it is whole."""

    def __init__(self, root: str, file: str, disk: Disk, compress: bool) -> None:
        self._root = root
        self._file = file
        self._disk = disk
        self._temp = f"{root}/.tmp-{os.getpid()}-{next(_temp_numbers)}-{file}"
        self._sink = _Sink(disk, self._temp)
        self._gzip = (
            gzip.GzipFile("", "wb", _COMPRESSION, self._sink, mtime=0) if compress else None
        )
        self._keys: set[str] = set()
        self.packed_bytes = 0

    @property
    def samples(self) -> int:
        return len(self._keys)

    def add(self, key: str, parts: Sequence[bytes], size: int) -> None:
        if key in self._keys:
            raise DataError(f"a key must come once, but {quote(key)} comes again in {self._file}.")
        self._keys.add(key)
        self.packed_bytes += size
        for part in parts:
            self._write(part)

    def publish(self) -> IndexEntry:
        """Close the archive, make it durable, and give it its name."""
        end = 2 * BLOCK
        self._write(bytes(end + -(self.packed_bytes + end) % tarfile.RECORDSIZE))
        if self._gzip is not None:
            self._gzip.close()
        target = f"{self._root}/{self._file}"
        try:
            self._sink.flush()
            self._disk.sync(self._temp)
            self._disk.rename(self._temp, target)
            self._disk.sync_dir(self._root)
        except OSError as error:
            raise explain(error, "write", target, self._sink.bytes) from error
        return IndexEntry(
            urls=(self._file,),
            samples=self.samples,
            bytes=self._sink.bytes,
            sha256=self._sink.digest.hexdigest(),
        )

    def discard(self) -> None:
        with contextlib.suppress(OSError):
            self._disk.remove(self._temp)

    def _write(self, data: bytes) -> None:
        try:
            (self._gzip or self._sink).write(data)
        except OSError as error:
            raise explain(error, "write", self._temp, len(data)) from error


class _Sink:
    """Gathers small pieces, counts and digests them on their way to the disk."""

    def __init__(self, disk: Disk, path: str) -> None:
        self._disk = disk
        self._path = path
        self._buffer = bytearray()
        self.digest = hashlib.sha256()
        self.bytes = 0

    def write(self, data: bytes) -> int:
        self._buffer += data
        if len(self._buffer) >= _BUFFER_BYTES:
            self.flush()
        return len(data)

    def flush(self) -> None:
        if self._buffer:
            self.digest.update(self._buffer)
            self._disk.append(self._path, self._buffer)
            self.bytes += len(self._buffer)
            self._buffer = bytearray()
