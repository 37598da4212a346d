"""The bell at the inbox of a run: what wakes its driver when somebody sends a command.

In a directory that is a pipe with a name. A remote store has none: there the inbox is looked at
every few seconds.
"""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cerebro.errors import StoreError
from cerebro.storage import layout
from cerebro.storage.store import DirectoryStore, Store

#: How often the inbox of a remote store is looked at.
LOOK_S = 2.0


class Bell:
    """Calls back, in a thread of its own, when somebody rings: ``ring``, or ``echo > inbox/bell``.

    Several rings at once may be one call. Where the file system has no such pipes it stays silent:
    a bell makes a driver look sooner, and is never the only reason to look. On a remote store it
    rings when something new is in the inbox.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> heard = threading.Event()
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Bell(DirectoryStore(directory), heard.set):
    ...         ring(DirectoryStore(directory)), heard.wait(10)
    ...     ring(DirectoryStore(directory))
    (True, True)
    False
    """

    def __init__(
        self, store: Store, callback: Callable[[], object], *, look_s: float = LOOK_S
    ) -> None:
        self._bell: _Pipe | _Watch | None
        if isinstance(store, DirectoryStore):
            self._bell = _Pipe.make(store, callback)
        else:
            self._bell = _Watch(store, callback, look_s)

    def close(self) -> None:
        """End the thread, and remove the pipe. The callback is not called afterwards."""
        if self._bell is not None:
            self._bell.close()
            self._bell = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


class _Pipe:
    """A pipe with a name, and a thread that reads it."""

    def __init__(self, path: str, callback: Callable[[], object]) -> None:
        self._path = path
        self._callback = callback
        self._reader, self._writer = _make(path)
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._listen, name="cerebro-bell", daemon=True)
        self._thread.start()

    @classmethod
    def make(cls, store: DirectoryStore, callback: Callable[[], object]) -> Self | None:
        """None where there are no pipes."""
        path = _path(store)
        try:
            return cls(path, callback)
        except OSError:
            return None

    def close(self) -> None:
        self._is_closed.set()
        # A pipe that is full wakes the thread as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\n")
        self._thread.join()
        # First the name, so that nobody finds a pipe without a reader.
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._reader)
        os.close(self._writer)

    def _listen(self) -> None:
        while True:
            os.read(self._reader, 4096)
            if self._is_closed.is_set():
                return
            self._callback()


class _Watch:
    """A thread that looks into the inbox of a remote store."""

    def __init__(self, store: Store, callback: Callable[[], object], look_s: float) -> None:
        self._store = store
        self._callback = callback
        self._look_s = look_s
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._watch, name="cerebro-bell", daemon=True)
        self._thread.start()

    def close(self) -> None:
        self._is_closed.set()
        self._thread.join()

    def _watch(self) -> None:
        known: set[str] = set()
        while not self._is_closed.wait(self._look_s):
            # A store that is away is the driver's concern.
            with contextlib.suppress(StoreError):
                names = set(self._store.list(layout.INBOX))
                if names - known and not self._is_closed.is_set():
                    self._callback()
                known = names


def ring(store: Store) -> bool:
    """Wake the driver of a run; whether one on this host has heard it. Never waits."""
    if not isinstance(store, DirectoryStore):
        return False
    try:
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW
        bell = os.open(_path(store), flags)
    except OSError:  # no bell, or nobody who listens
        return False
    try:
        if not stat.S_ISFIFO(os.fstat(bell).st_mode):
            return False
        with contextlib.suppress(BlockingIOError):  # so full that it rings already
            os.write(bell, b"\n")
    except BrokenPipeError:
        return False
    finally:
        os.close(bell)
    return True


def _path(store: DirectoryStore) -> str:
    # A link of this name is not followed: the bell that a driver leaves is removed by the next.
    return f"{store.local_path(layout.INBOX)}/{layout.BELL}"


def _make(path: str) -> tuple[int, int]:
    """The two ends of a new pipe; one that a killed driver left is replaced."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    os.mkfifo(path, 0o600)
    # Open for both: a pipe that somebody may write to never ends.
    reader = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
    try:
        return reader, os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_NOFOLLOW)
    except BaseException:
        os.close(reader)
        raise
