"""The lock of a run: one driver at a time."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from dataclasses import asdict
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from cerebro.errors import RunLockedError, StoreError
from cerebro.storage import layout
from cerebro.storage.lease import Holder, Lease, read_lease_holder
from cerebro.storage.remote_store import RemoteStore
from cerebro.storage.store import DirectoryStore, Store, explain

__all__ = ["Holder", "RunLock", "read_holder"]


class RunLock:
    """Held by the driver that writes a run.

    In a directory the kernel frees it when the driver dies. On a remote store it is a lease, which
    the driver renews; see `lease.py`.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with RunLock(DirectoryStore(directory)):
    ...         read_holder(DirectoryStore(directory)).pid == os.getpid()
    True
    """

    def __init__(self, store: Store, path: str = layout.LOCK) -> None:
        self._lock: _FileLock | Lease
        if isinstance(store, RemoteStore):
            self._lock = Lease(store, path)
        else:
            self._lock = _FileLock(_directory(store), path)
        self._url = store.url
        self._is_held = False

    def acquire(self) -> None:
        """Take the lock or raise ``RunLockedError``.

        That is done at once, unless a remote store shows a driver that may be dead or alive.
        """
        if self._is_held:
            raise RunLockedError(f"{self._url} is locked by this very object already.")
        self._lock.acquire()
        self._is_held = True

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._is_held:
            self._is_held = False
            self._lock.release()

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.release()


class _FileLock:
    """A lock of the kernel on a file."""

    def __init__(self, store: DirectoryStore, path: str) -> None:
        self._store = store
        self._path = path
        self._fd = -1

    def acquire(self) -> None:
        full = self._store.local_path(self._path)
        try:
            os.makedirs(os.path.dirname(full), exist_ok=True)
            # Not inherited by the programs a driver starts: they may live longer.
            fd = os.open(full, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
        except OSError as error:
            if error.errno == errno.ENOSPC:
                raise explain(error, "make", full, needed=1) from error
            raise StoreError(
                f"cannot open {full}: {error.strerror}. Check that you may write there."
            ) from error
        try:
            self._take(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        try:
            os.ftruncate(self._fd, 0)
        finally:
            os.close(self._fd)

    def _take(self, fd: int) -> None:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = read_holder(self._store, self._path)
            who = "another driver"
            if holder is not None:
                who = f"host {holder.host}, pid {holder.pid}, since {holder.started}"
            raise RunLockedError(
                f"a run must have one driver, but {self._store.url} is being written by {who}. "
                "Wait until it is done, or stop it."
            ) from error
        except OSError as error:
            raise StoreError(
                f"cannot lock {self._store.local_path(self._path)}: {error.strerror}. The disk "
                "must know locks of files (Lustre does if it is mounted with flock): choose "
                "another place."
            ) from error
        holder = Holder(
            host=socket.gethostname(),
            pid=os.getpid(),
            started=datetime.now(UTC).isoformat(timespec="seconds"),
        )
        # Only for people: a full disk must not keep anyone from a finished run.
        with contextlib.suppress(OSError):
            os.ftruncate(fd, 0)
            os.pwrite(fd, json.dumps(asdict(holder)).encode() + b"\n", 0)


def read_holder(store: Store, path: str = layout.LOCK) -> Holder | None:
    """Who took the lock last and did not give it back; it may have died since."""
    if isinstance(store, RemoteStore):
        return read_lease_holder(store, path)
    if not store.exists(path):
        return None
    try:
        return Holder(**json.loads(store.read(path)))
    except (ValueError, TypeError, RecursionError):
        return None


def _directory(store: Store) -> DirectoryStore:
    if not isinstance(store, DirectoryStore):
        raise StoreError(f"{store.url} has no locks: use a directory or a remote store.")
    return store
