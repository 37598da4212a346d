"""The primitive file operations everything durable is made of.

Each method is one operation: this is the seam at which tests inject faults. Paths are absolute.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterable, Sequence
from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

_MAX_IOVECS = 1024  # Linux IOV_MAX
#: What file systems say where a file cannot have two names.
_ONE_NAME = {errno.EPERM, errno.ENOSYS, errno.ENOTSUP, errno.EMLINK, errno.EXDEV}


class Disk:
    """The local file system, one method an operation. Raises plain ``OSError``.

    File descriptors of files created or appended to stay open until they are synced, respectively
    closed: a write-back error is reported to descriptors that were open when it happened.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     disk = Disk()
    ...     disk.create(f"{directory}/a", [b"hop", b"per"])
    ...     disk.sync(f"{directory}/a")
    ...     disk.read(f"{directory}/a")
    b'hopper'
    """

    def __init__(self) -> None:
        self._created: dict[str, int] = {}
        self._appended: dict[str, int] = {}

    def create(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Write a file that must not exist yet. Its bytes are not durable before ``sync``.

        Chunks of an iterator are written as they come.
        """
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        try:
            if isinstance(chunks, Sequence):
                _write(fd, chunks)
            else:
                for chunk in chunks:
                    _write(fd, [chunk])
        except BaseException:
            os.close(fd)
            raise
        self._created[path] = fd

    def append(self, path: str, data: Buffer) -> None:
        """Add bytes at the end of a file, which is created if missing. Not durable before sync."""
        fd = self._appended.get(path)
        if fd is None:
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
            fd = self._appended[path] = os.open(path, flags, 0o644)
        _write(fd, [data])

    def sync(self, path: str) -> None:
        """Make the bytes of a file durable. After a failure, write a new file: never sync again."""
        fd = self._appended.get(path)
        if fd is not None:
            try:
                os.fsync(fd)
            except OSError:
                self._forget(path)
                raise
            return
        fd = self._created.pop(path, None)
        if fd is None:
            fd = os.open(path, os.O_RDONLY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def rename(self, source: str, target: str) -> None:
        """Give a file its final name, replacing what had that name, in one step."""
        self._forget(source)
        self._forget(target)
        os.replace(source, target)

    def link(self, source: str, target: str) -> None:
        """Give a file that nobody changes a second name, or copy it where it can have but one."""
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _ONE_NAME:
                raise
            shutil.copyfile(source, target)
            self.sync(target)

    def sync_dir(self, path: str) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        """The bytes of a file, from a place on, so many at most."""
        with open(path, "rb", buffering=0 if size is None else -1) as file:
            if start:
                file.seek(start)
            return file.read(-1 if size is None else size)

    def read_into(self, path: str, buffer: bytearray | memoryview) -> int:
        """Fill a writable buffer from the start of a file; the number of bytes read."""
        view = as_bytes(buffer)
        done = 0
        with open(path, "rb", buffering=0) as file:
            while done < len(view):
                count = file.readinto(view[done:])
                if not count:
                    break
                done += count
        return done

    def list(self, path: str) -> list[str]:
        """The names in a directory, sorted; none if there is no such directory."""
        try:
            return sorted(os.listdir(path))
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        """Remove a file, or a directory that is empty."""
        self._forget(path)
        try:
            os.unlink(path)
        except IsADirectoryError:
            os.rmdir(path)

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to its first ``size`` bytes."""
        os.truncate(path, size)

    def make_dir(self, path: str) -> None:
        """Make one directory, whose parent must exist."""
        os.mkdir(path)

    def size(self, path: str) -> int:
        """The number of bytes in a file."""
        return os.stat(path).st_size

    def close(self) -> None:
        """Close what is still open. The disk stays usable."""
        for path in [*self._created, *self._appended]:
            self._forget(path)

    def _forget(self, path: str) -> None:
        for opened in (self._created, self._appended):
            fd = opened.pop(path, None)
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)


def as_bytes(buffer: Buffer) -> memoryview:
    """The bytes of any contiguous buffer, not copied."""
    view = memoryview(buffer)
    # An empty multi-dimensional view cannot be cast.
    return view.cast("B") if view.nbytes else memoryview(b"")


def _write(fd: int, chunks: Sequence[Buffer]) -> None:
    """Write all chunks without copying them, however little each call takes."""
    views = [view for view in map(as_bytes, chunks) if len(view)]
    first = 0
    while first < len(views):
        written = os.writev(fd, views[first : first + _MAX_IOVECS])
        while first < len(views) and written >= len(views[first]):
            written -= len(views[first])
            first += 1
        if written:
            views[first] = views[first][written:]
