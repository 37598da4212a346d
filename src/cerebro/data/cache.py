"""Shards that are kept elsewhere: copies of them on this machine, fetched when they are opened."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import stat
import tempfile
from collections.abc import Iterator

from cerebro.data.manifest import ShardInfo
from cerebro.errors import ShardCorruptError, StoreError
from cerebro.storage.remote import fetch, join, redact

#: What all copies together may take, unless said otherwise.
LIMIT_BYTES = 10_000_000_000
#: A file that `fetch` is writing, with the number of its process.
_TEMP = re.compile(r"\.tmp-(\d+)-")


class ShardCache:
    """Copies of a dataset's shards, shared by all processes of this user on this machine.

    A copy is checked against its digest before it counts. When all copies together are larger than
    the limit, those unused for longest are removed; who has one mapped keeps it.

    Args:
        url: Where the dataset is.
        root: The directory for copies; default one in the directory for temporary files.
        limit_bytes: Default 10 GB, or what `limit` has set for this process.
    """

    def __init__(
        self, url: str, *, root: str | None = None, limit_bytes: int | None = None
    ) -> None:
        self._url = url
        self._root = root or os.path.join(tempfile.gettempdir(), f"cerebro-{os.getuid()}")
        self._limit = limit_bytes if limit_bytes is not None else _SETTINGS["limit_bytes"]

    def path(self, info: ShardInfo) -> str:
        """A copy of a shard; fetched, unless it is there."""
        name = f"{info.sha256}.arrow"
        path = os.path.join(self._root, name)
        try:
            self._make_root()
            with self._locked(name):
                if not _is_there(path, info):
                    self._make_room(info.bytes, keep=name)
                    self._fetch(path, info)
                os.utime(path)
        except StoreError:
            raise
        except OSError as error:
            raise StoreError(
                f"shards of {redact(self._url)} must be copied to {self._root}, but: "
                f"{error.strerror or error}. Set TMPDIR to a directory with room."
            ) from error
        return path

    def forget(self, info: ShardInfo) -> None:
        """Remove the copy of a shard, if there is one."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(os.path.join(self._root, f"{info.sha256}.arrow"))

    def _make_root(self) -> None:
        os.makedirs(self._root, mode=0o700, exist_ok=True)
        found = os.lstat(self._root)
        if found.st_uid != os.getuid() or stat.S_IMODE(found.st_mode) & 0o022:
            raise StoreError(
                f"shards of {redact(self._url)} must be copied to a directory that nobody else can "
                f"write to, but {self._root} is not. Set TMPDIR to another."
            )

    def _fetch(self, path: str, info: ShardInfo) -> None:
        source = join(self._url, info.file)
        # One process at a time writes it: what a killed one left is overwritten.
        temp = f"{path}.part"
        try:
            fetch(source, temp)
            with open(temp, "rb") as file:
                found = hashlib.file_digest(file, "sha256").hexdigest()
            if found != info.sha256:
                raise ShardCorruptError(
                    f"shard {redact(source)} is damaged: its SHA-256 must be {info.sha256}, but is "
                    f"{found}. Prepare the dataset again from its source."
                )
            os.replace(temp, path)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)

    def _make_room(self, size: int, *, keep: str) -> None:
        """Remove the copies unused for longest until there is room for another."""
        copies = []
        for entry in os.scandir(self._root):
            is_copy = entry.name.endswith(".arrow") and entry.name != keep
            if is_copy or _is_left_over(entry.name):
                with contextlib.suppress(FileNotFoundError):
                    found = entry.stat()
                    copies.append((found.st_mtime, found.st_size, entry.path))
        total = size + sum(each[1] for each in copies)
        for _, each, path in sorted(copies):
            if total <= self._limit:
                return
            with contextlib.suppress(FileNotFoundError):
                os.unlink(path)
            total -= each

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        """One process at a time has to do with a copy; the kernel frees locks of the dead."""
        descriptor = os.open(
            os.path.join(self._root, f"{name}.lock"), os.O_RDWR | os.O_CREAT, 0o600
        )
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)


_SETTINGS = {"limit_bytes": LIMIT_BYTES}


def limit(limit_bytes: int) -> None:
    """What copies may take from now on, in this process.

    >>> limit(LIMIT_BYTES)
    """
    _SETTINGS["limit_bytes"] = limit_bytes


def _is_left_over(name: str) -> bool:
    """Whether it is what a process has fetched that was killed meanwhile."""
    writer = _TEMP.match(name)
    return writer is not None and not os.path.exists(f"/proc/{writer[1]}")


def _is_there(path: str, info: ShardInfo) -> bool:
    try:
        return os.stat(path).st_size == info.bytes
    except FileNotFoundError:
        return False
