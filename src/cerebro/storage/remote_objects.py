"""Objects on any file system of fsspec: memory://, s3://, gs://, abfs://, ..."""

from __future__ import annotations

import contextlib
import itertools
import os
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from cerebro.storage.disk import Buffer, as_bytes
from cerebro.storage.objects import Entry, Objects
from cerebro.storage.remote import RENAMING, open_filesystem
from cerebro.storage.remote_hdfs import open_hdfs
from cerebro.storage.remote_names import scheme_of
from cerebro.storage.remote_retry import is_worth_retrying

#: Up to here an object is sent in one request; a longer one in blocks, each held in memory once.
_WHOLE_BYTES = 8 << 20
_BLOCK_BYTES = 16 << 20
#: Object stores take at most 10,000 blocks.
_MAX_BLOCKS = 9_000
#: Where fsspec itself sees to it that of two who create an object one fails.
_CREATING = {"abfs", "abfss", "az", "gcs", "gs", "s3", "s3a"}
#: Elsewhere looking and writing are two steps: at least in this process nobody comes in between.
_LOOKING = threading.Lock()
_TEMP_NUMBERS = itertools.count()


def open_objects(url: str) -> tuple[Objects, str]:
    """The objects at a URL, and the name inside them."""
    if scheme_of(url) == "hdfs":
        return open_hdfs(url)
    # Others write there too: what was listed before tells nothing.
    filesystem, path = open_filesystem(url, use_listings_cache=False)
    return FsspecObjects(filesystem), path


class FsspecObjects:
    """The objects of one fsspec file system.

    >>> from cerebro.storage.remote import open_filesystem
    >>> objects = FsspecObjects(open_filesystem("memory://objects")[0])
    >>> objects.create("/objects/a", b"one")
    >>> objects.get("/objects/a", 1), objects.list("/objects")
    (b'ne', [Entry(name='a', size=3)])
    """

    def __init__(self, filesystem: Any) -> None:
        self._fs = filesystem
        protocol = filesystem.protocol
        self._scheme = protocol if isinstance(protocol, str) else protocol[0]
        self._creates = self._scheme in _CREATING or hasattr(filesystem, "creates_exclusively")

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        if self._scheme in RENAMING:
            self._put_renamed(path, chunks)
        else:
            self._put(path, chunks)

    def create(self, path: str, data: bytes) -> None:
        if self._creates:
            try:
                self._fs.pipe_file(path, data, mode="create")
            except OSError as error:
                # Not all servers say in the same words that it is there.
                if not is_worth_retrying(error) and self._fs.exists(path):
                    raise FileExistsError(path) from error
                raise
            return
        with _LOOKING:
            if self._fs.exists(path):
                raise FileExistsError(path)
            self.put(path, [data])

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        if start == 0 and end is None:
            return bytes(self._fs.cat_file(path))
        return bytes(self._fs.cat_file(path, start=start, end=end))

    def look(self, path: str) -> Entry | None:
        try:
            return _entry(self._fs.info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: str) -> list[Entry]:
        try:
            found = self._fs.ls(path, detail=True)
        except (FileNotFoundError, NotADirectoryError):
            return []
        # A file lists as itself, and some directories hold a mark of the same name.
        own = path.strip("/")
        entries = (_entry(each) for each in found if str(each["name"]).strip("/") != own)
        return [entry for entry in entries if entry.name]

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.rm_file(path)

    def copy(self, source: str, target: str) -> None:
        self._make_parent(target)
        self._fs.cp_file(source, target)

    def _put_renamed(self, path: str, chunks: Iterable[Buffer]) -> None:
        folder, _, name = path.rpartition("/")
        temp = f"{folder}/" + f".tmp-{os.getpid()}-{next(_TEMP_NUMBERS)}-{name}"[:100]
        try:
            self._put(temp, chunks)
            with contextlib.suppress(FileNotFoundError):
                self._fs.rm_file(path)  # not all of them rename over a file
            self._fs.mv(temp, path)
        except BaseException:
            with contextlib.suppress(Exception):
                self._fs.rm_file(temp)
            raise

    def _put(self, path: str, chunks: Iterable[Buffer]) -> None:
        self._make_parent(path)
        size = _size(chunks)
        # What is written into memory piece by piece can be seen while it grows.
        if self._scheme == "memory" or (size is not None and size <= _WHOLE_BYTES):
            self._fs.pipe_file(path, b"".join(map(as_bytes, chunks)))
            return
        block = max(_BLOCK_BYTES, -(-(size or 0) // _MAX_BLOCKS))
        file = self._fs.open(path, "wb", block_size=block)
        try:
            for piece in _pieces(chunks, block):
                file.write(piece)
            file.close()
        except BaseException:
            _discard(file)
            raise

    def _make_parent(self, path: str) -> None:
        if not self._creates:
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)


def _discard(file: Any) -> None:
    """Give up a half-written object: to close it, as its finalizer would, is to commit it."""
    with contextlib.suppress(Exception):
        file.discard()
    with contextlib.suppress(AttributeError):
        file.closed = True


def _size(chunks: Iterable[Buffer]) -> int | None:
    if not isinstance(chunks, Sequence):
        return None
    return sum(memoryview(chunk).nbytes for chunk in chunks)


def _pieces(chunks: Iterable[Buffer], block: int) -> Iterator[memoryview]:
    """Cut so that no more than a block is copied on its way."""
    for view in map(as_bytes, chunks):
        for start in range(0, len(view), block):
            yield view[start : start + block]


def _entry(info: Any) -> Entry:
    name = str(info["name"]).rstrip("/").rpartition("/")[2]
    return Entry(name, None if info["type"] == "directory" else int(info["size"]))
