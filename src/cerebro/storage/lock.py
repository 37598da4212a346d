"""The lock of a run: one driver at a time on this host."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import os
import socket
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from types import TracebackType
from typing import Self

from cerebro.errors import RunLockedError, StoreError
from cerebro.storage import layout
from cerebro.storage.store import Store, explain


@dataclass(frozen=True, slots=True, kw_only=True)
class Holder:
    """Who took a lock last: ``started`` is an ISO 8601 time in UTC."""

    host: str
    pid: int
    started: str


class RunLock:
    """Held by the driver that writes a run; the kernel frees it when the driver dies.

    >>> import tempfile
    >>> from cerebro.storage import LocalStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with RunLock(LocalStore(directory)):
    ...         read_holder(LocalStore(directory)).pid == os.getpid()
    True
    """

    def __init__(self, store: Store, path: str = layout.LOCK) -> None:
        self._store = store
        self._path = path
        self._fd: int | None = None

    def acquire(self) -> None:
        """Take the lock or raise ``RunLockedError``, at once."""
        if self._fd is not None:
            raise RunLockedError(f"{self._store.url} is locked by this very object already.")
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
            self._lock(fd)
        except BaseException:
            os.close(fd)
            raise
        self._fd = fd

    def release(self) -> None:
        """Give the lock back; nothing happens if it is not held."""
        if self._fd is None:
            return
        fd, self._fd = self._fd, None
        try:
            os.ftruncate(fd, 0)
        finally:
            os.close(fd)

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

    def _lock(self, fd: int) -> None:
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
    if not store.exists(path):
        return None
    try:
        return Holder(**json.loads(store.read(path)))
    except (ValueError, TypeError, RecursionError):
        return None
