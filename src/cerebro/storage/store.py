"""Stores: named bytes, written whole or not at all."""

from __future__ import annotations

import contextlib
import errno
import itertools
import os
import re
import shutil
import stat
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Protocol, Self, TypeAlias
from urllib.parse import quote

from cerebro.errors import DiskFullError, StoreError, UsageError
from cerebro.storage.disk import Buffer, Disk

Data: TypeAlias = Buffer | Sequence[Buffer]

_NAME = re.compile(r"[A-Za-z0-9._][A-Za-z0-9._-]{0,99}", re.ASCII)
_TEMP = re.compile(r"\.tmp-\d+-\d+-[A-Za-z0-9._-]+", re.ASCII)
_FULL = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}
# One for all stores of the process: two of them may write to one directory.
_TEMP_NUMBERS = itertools.count()


class Store(Protocol):
    """Files below one root, named by relative POSIX paths such as ``trials/t0007/params.json``.

    Every method raises ``UsageError`` for a path that could lead outside the root, and
    ``StoreError`` (its ``errno`` set where known) when the storage fails. What ``write``,
    ``write_many``, ``append`` and ``truncate`` did is durable when they return.
    """

    @property
    def url(self) -> str:
        """Where the store is; opens it again with ``open_store``. Holds no credentials."""

    def child(self, path: str) -> Store:
        """The store of a directory below this one."""

    def read(self, path: str) -> bytes:
        """All bytes of a file."""

    def read_from(self, path: str, start: int, size: int | None = None) -> bytes:
        """The bytes of a file from a place on, so many at most; none if it is not so long."""

    def read_into(self, path: str, buffer: bytearray | memoryview) -> int:
        """Fill a buffer from the start of a file; the number of bytes read."""

    def write(self, path: str, data: Data) -> None:
        """Write a file: after a crash it holds all of the old or all of the new bytes."""

    def write_many(self, files: Mapping[str, Data]) -> None:
        """Write several files, each as ``write`` does; they appear in the order given."""

    def copy(self, source: str, target: str) -> None:
        """Write a file with the bytes of another, which do not pass through this process."""

    def write_stream(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Write a file as ``write`` does, of chunks that are made while it is written."""

    def append(self, path: str, data: Buffer) -> None:
        """Add bytes at the end of a file; a crash may leave a prefix of them."""

    def exists(self, path: str) -> bool:
        """Whether there is a file or directory of this name."""

    def size(self, path: str) -> int:
        """The number of bytes in a file."""

    def list(self, path: str = "") -> list[str]:
        """The names in a directory, sorted; none if there is no such directory."""

    def remove(self, path: str) -> None:
        """Remove a file; nothing happens if there is none."""

    def truncate(self, path: str, size: int) -> None:
        """Cut a file to its first ``size`` bytes."""

    def free_bytes(self) -> int:
        """How much more may be written."""

    @property
    def appends_whole(self) -> bool:
        """Whether a crash leaves all or nothing of what was being appended."""

    @property
    def leaves_temps(self) -> bool:
        """Whether a writer that is killed may leave files which ``is_temp`` knows."""

    def where(self, path: str = "") -> str:
        """What people call a file or, without a name, the store: its path, or its URL."""

    def close(self) -> None:
        """Let go of open files. The store stays usable."""


class DirectoryStore:
    """A store in a directory, which is made at the first write.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = DirectoryStore(directory)
    ...     store.write("trials/t0000/params.json", b"{}")
    ...     store.read("trials/t0000/params.json"), store.list("trials")
    (b'{}', ['t0000'])
    """

    def __init__(self, root: str | os.PathLike[str], disk: Disk | None = None) -> None:
        text = os.fspath(root)
        if not text or "\0" in text:
            raise UsageError(f"a store must be a directory name without NUL, but got {text!r}.")
        self.root = os.path.realpath(os.path.expanduser(text))
        self._disk = disk or Disk()
        self._known_dirs: set[str] = set()
        self._synced_dirs: set[str] = set()
        self._appended: set[str] = set()

    def __repr__(self) -> str:
        return f"DirectoryStore({self.root!r})"

    @property
    def url(self) -> str:
        return f"file://{quote(self.root)}"

    def child(self, path: str) -> Self:
        return type(self)(self._resolve(path), self._disk)

    def read(self, path: str) -> bytes:
        full = self._resolve(path)
        with self._translated("read", full):
            return self._disk.read(full)

    def read_from(self, path: str, start: int, size: int | None = None) -> bytes:
        full = self._resolve(path)
        with self._translated("read", full):
            return self._disk.read(full, start, size)

    def read_into(self, path: str, buffer: bytearray | memoryview) -> int:
        full = self._resolve(path)
        with self._translated("read", full):
            return self._disk.read_into(full, buffer)

    def write(self, path: str, data: Data) -> None:
        self.write_many({path: data})

    def write_many(self, files: Mapping[str, Data]) -> None:
        temps: dict[str, str] = {}
        targets = {self._resolve(path): as_chunks(data) for path, data in files.items()}
        needed = sum(memoryview(chunk).nbytes for chunks in targets.values() for chunk in chunks)
        try:
            for target, chunks in targets.items():
                with self._translated("write", target, needed):
                    temps[target] = self._write_temp(target, chunks)
            for target in targets:
                with self._translated("write", target, needed):
                    self._disk.rename(temps[target], target)
                del temps[target]
            for directory in dict.fromkeys(map(os.path.dirname, targets)):
                with self._translated("write", directory, needed):
                    self._disk.sync_dir(directory)
        finally:
            for temp in temps.values():
                with contextlib.suppress(OSError):
                    self._disk.remove(temp)

    def write_stream(self, path: str, chunks: Iterable[Buffer]) -> None:
        target = self._resolve(path)
        with self._translated("write", target):
            temp = self._write_temp(target, chunks)
            try:
                self._disk.rename(temp, target)
            except BaseException:
                with contextlib.suppress(OSError):
                    self._disk.remove(temp)
                raise
            self._disk.sync_dir(os.path.dirname(target))

    def copy(self, source: str, target: str) -> None:
        full, final = self._resolve(source), self._resolve(target)
        with self._translated("write", final):
            self._make_dirs(os.path.dirname(final))
            while True:
                temp = self._temp_name(final)
                with contextlib.suppress(FileExistsError):
                    self._disk.link(full, temp)
                    break
            self._disk.rename(temp, final)
            # Names of one file are not replaced by each other.
            with contextlib.suppress(FileNotFoundError):
                self._disk.remove(temp)
            self._disk.sync_dir(os.path.dirname(final))

    def append(self, path: str, data: Buffer) -> None:
        full = self._resolve(path)
        with self._translated("append to", full, memoryview(data).nbytes):
            if full in self._appended:
                self._disk.append(full, data)
                self._disk.sync(full)
                return
            directory = os.path.dirname(full)
            self._make_dirs(directory)
            self._disk.append(full, data)
            self._disk.sync(full)
            self._disk.sync_dir(directory)
            self._appended.add(full)

    def exists(self, path: str) -> bool:
        full = self._resolve(path)
        with self._translated("look for", full):
            try:
                self._disk.size(full)
            except (FileNotFoundError, NotADirectoryError):
                return False
            return True

    def size(self, path: str) -> int:
        full = self._resolve(path)
        with self._translated("look at", full):
            return self._disk.size(full)

    def list(self, path: str = "") -> list[str]:
        full = self._resolve(path) if path else self.root
        with self._translated("list", full):
            return self._disk.list(full)

    def remove(self, path: str) -> None:
        full = self._resolve(path)
        self._appended.discard(full)
        with self._translated("remove", full), contextlib.suppress(FileNotFoundError):
            self._disk.remove(full)

    def truncate(self, path: str, size: int) -> None:
        full = self._resolve(path)
        with self._translated("truncate", full):
            self._disk.truncate(full, size)
            self._disk.sync(full)

    def free_bytes(self) -> int:
        return _free_bytes(self.root)

    @property
    def appends_whole(self) -> bool:
        return False

    @property
    def leaves_temps(self) -> bool:
        return True

    def where(self, path: str = "") -> str:
        return self.local_path(path)

    def local_path(self, path: str = "") -> str:
        """The absolute name of a file for code that needs one (it need not exist)."""
        return self._resolve(path) if path else self.root

    def close(self) -> None:
        # The directory may be moved or removed before the store is used again.
        for memory in (self._known_dirs, self._synced_dirs, self._appended):
            memory.clear()
        self._disk.close()

    def _resolve(self, path: str) -> str:
        """The absolute path of a checked name, links below the root followed."""
        full = self.root
        for name in split_path(path):
            full = f"{full}/{name}"
            try:
                is_link = stat.S_ISLNK(os.lstat(full).st_mode)
            except OSError:
                continue
            if is_link:
                full = os.path.realpath(full)
                if os.path.commonpath([self.root, full]) != self.root:
                    raise UsageError(
                        f"a path must stay inside its store, but {path!r} is a link out of "
                        f"{self.root}. Remove the link."
                    )
        return full

    def _write_temp(self, target: str, chunks: Iterable[Buffer]) -> str:
        """Write and sync a file under a passing name. A failed sync is not tried again."""
        self._make_dirs(os.path.dirname(target))
        while True:
            temp = self._temp_name(target)
            try:
                self._disk.create(temp, chunks)
                self._disk.sync(temp)
            except FileExistsError:
                continue  # left by a killed process whose pid we were given again
            except BaseException:
                with contextlib.suppress(OSError):
                    self._disk.remove(temp)
                raise
            return temp

    def _temp_name(self, target: str) -> str:
        directory, name = os.path.split(target)
        return f"{directory}/" + f".tmp-{os.getpid()}-{next(_TEMP_NUMBERS)}-{name}"[:100]

    def _make_dirs(self, directory: str) -> None:
        """Make a directory and its missing parents, each durable in its own parent."""
        if directory in self._known_dirs:
            return
        parent = os.path.dirname(directory)
        try:
            self._make_dir(directory)
        except FileNotFoundError:
            self._make_dirs(parent)
            self._make_dir(directory)
        self._known_dirs.add(directory)

    def _make_dir(self, directory: str) -> None:
        parent = os.path.dirname(directory)
        try:
            self._disk.make_dir(directory)
        except FileExistsError:
            # A run that was killed may have made it without syncing the parent. What is above
            # the root is the user's, and perhaps not ours to open.
            if directory == self.root or parent in self._synced_dirs:
                return
        self._disk.sync_dir(parent)
        self._synced_dirs.add(parent)

    @contextlib.contextmanager
    def _translated(self, action: str, path: str, needed: int = 0) -> Iterator[None]:
        """Raise what the operating system refuses as an error that says what to do."""
        try:
            yield
        except OSError as error:
            raise explain(error, action, path, needed) from error


def explain(error: OSError, action: str, path: str, needed: int) -> StoreError:
    """What the operating system refused, as an error that says what to do."""
    reason = error.strerror or str(error)
    if error.errno in _FULL:
        explained: StoreError = DiskFullError(
            f"cannot {action} {path}: {reason}. {needed} bytes are needed and "
            f"{_free_bytes(path)} are free. What was committed is intact: free some space (or "
            "raise the quota or file size limit), then run the same command again to resume."
        )
    else:
        explained = StoreError(
            f"cannot {action} {path}: {reason}. Check that the store exists, is mounted and "
            "that you may use it, then run the same command again."
        )
    explained.errno = error.errno
    return explained


def is_temp(name: str) -> bool:
    """Whether a name is that of a file being written, which is rubbish once its writer is dead.

    >>> is_temp(".tmp-4711-0-run.json"), is_temp("run.json")
    (True, False)
    """
    return _TEMP.fullmatch(name) is not None


def split_path(path: str) -> list[str]:
    """The names in a path, each one that cannot lead elsewhere."""
    names = path.split("/")
    for name in names:
        if name in (".", "..") or not _NAME.fullmatch(name):
            raise UsageError(
                f"a name in a store must be 1 to 100 letters, digits, '.', '_' or '-', not start "
                f"with '-' and not be '.' or '..', but got {name[:120]!r} in {path[:400]!r}."
            )
    return names


def as_chunks(data: Data) -> Sequence[Buffer]:
    """The pieces that something to write is made of."""
    return [data] if isinstance(data, bytes | bytearray | memoryview) else data


def _free_bytes(path: str) -> int:
    try:
        return shutil.disk_usage(path).free
    except FileNotFoundError:
        return _free_bytes(os.path.dirname(path))
