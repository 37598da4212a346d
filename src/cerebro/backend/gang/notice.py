"""What comes on one thread, perhaps before anybody wants to know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Notice(Generic[T]):
    """Hands values to a callback; one that comes later is told of those that came before it, too.

    Each callback hears all of them: what the last one did with a value may be gone with it.

    >>> notice = Notice()
    >>> notice.tell(15)
    >>> notice.hand_to(print)
    15
    >>> notice.tell(2)
    2
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._told: list[T] = []
        self._callback: Callable[[T], None] | None = None

    def tell(self, value: T) -> None:
        with self._lock:
            self._told.append(value)
            callback = self._callback
        if callback is not None:
            callback(value)

    def keep(self) -> None:
        """From now on nobody listens: what comes is for the next callback."""
        with self._lock:
            self._callback = None

    def hand_to(self, callback: Callable[[T], None]) -> None:
        """From now on; what has come before is told first, on this thread."""
        with self._lock:
            told = list(self._told)
            self._callback = callback
        for value in told:
            callback(value)
