"""The bell at the inbox of a run: a pipe with a name that wakes the driver on this host."""

from __future__ import annotations

import contextlib
import os
import stat
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Self

from cerebro.storage import layout
from cerebro.storage.store import Store


class Bell:
    """Calls back, in a thread of its own, when somebody rings: ``ring``, or ``echo > inbox/bell``.

    Several rings at once may be one call. Where the file system has no such pipes it stays silent:
    a bell makes a driver look sooner, and is never the only reason to look.

    >>> import tempfile
    >>> from cerebro.storage import LocalStore
    >>> heard = threading.Event()
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     with Bell(LocalStore(directory), heard.set):
    ...         ring(LocalStore(directory)), heard.wait(10)
    ...     ring(LocalStore(directory))
    (True, True)
    False
    """

    def __init__(self, store: Store, callback: Callable[[], object]) -> None:
        self._callback = callback
        self._is_closed = threading.Event()
        self._thread: threading.Thread | None = None
        self._path = _path(store)
        try:
            self._reader, self._writer = _make(self._path)
        except OSError:
            return
        self._thread = threading.Thread(target=self._listen, name="cerebro-bell", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread and remove the pipe. The callback is not called afterwards."""
        if self._thread is None:
            return
        self._is_closed.set()
        # A pipe that is full wakes the thread as well.
        with contextlib.suppress(BlockingIOError):
            os.write(self._writer, b"\n")
        self._thread.join()
        self._thread = None
        # First the name, so that nobody finds a pipe without a reader.
        with contextlib.suppress(OSError):
            os.unlink(self._path)
        os.close(self._reader)
        os.close(self._writer)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _listen(self) -> None:
        while True:
            os.read(self._reader, 4096)
            if self._is_closed.is_set():
                return
            self._callback()


def ring(store: Store) -> bool:
    """Wake the driver of a run; whether one on this host has heard it. Never waits."""
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


def _path(store: Store) -> str:
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
