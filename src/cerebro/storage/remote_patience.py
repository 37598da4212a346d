"""Objects whose operations are tried again when the network or the server fails."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from cerebro.storage.disk import Buffer
from cerebro.storage.objects import Entry, Objects
from cerebro.storage.remote_retry import Retry

_T = TypeVar("_T")

#: For a store that has answered before: it may be away for some minutes.
PATIENT = Retry(attempts=15, max_delay_s=30.0)


class PatientObjects:
    """The same objects. What was never reached is given up soon, what has answered before late.

    >>> from cerebro.storage.remote import open_filesystem
    >>> from cerebro.storage.remote_objects import FsspecObjects
    >>> objects = PatientObjects(FsspecObjects(open_filesystem("memory://patient")[0]))
    >>> objects.put("/patient/a", [b"one"])
    >>> objects.get("/patient/a")
    b'one'
    """

    def __init__(self, inner: Objects, retry: Retry | None = None) -> None:
        self._inner = inner
        self._retry = retry
        self._has_answered = False

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        if isinstance(chunks, Sequence):
            self._run(path, lambda: self._inner.put(path, chunks))
        else:
            # What is made on the way cannot be made again.
            self._inner.put(path, chunks)

    def create(self, path: str, data: bytes) -> None:
        def make() -> None:
            try:
                self._inner.create(path, data)
            except FileExistsError:
                # An attempt whose answer was lost may have been ours.
                if self._inner.get(path) != data:
                    raise

        self._run(path, make)

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        return self._run(path, lambda: self._inner.get(path, start, end))

    def look(self, path: str) -> Entry | None:
        return self._run(path, lambda: self._inner.look(path))

    def list(self, path: str) -> list[Entry]:
        return self._run(path, lambda: self._inner.list(path))

    def remove(self, path: str) -> None:
        self._run(path, lambda: self._inner.remove(path))

    def copy(self, source: str, target: str) -> None:
        self._run(source, lambda: self._inner.copy(source, target))

    def _run(self, path: str, operate: Callable[[], _T]) -> _T:
        policy = self._retry or (PATIENT if self._has_answered else Retry())
        try:
            result = policy.run(path, operate)
        except (FileNotFoundError, FileExistsError):
            self._has_answered = True
            raise
        self._has_answered = True
        return result
