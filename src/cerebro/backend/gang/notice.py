"""What comes on one thread, perhaps before anybody wants to know of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Notice(Generic[T]):
    """Hands values to a callback; those that come before there is one are kept for it.

    >>> notice = Notice()
    >>> notice.tell(15)
    >>> notice.hand_to(print)
    15
    >>> notice.tell(2)
    2
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._kept: list[T] = []
        self._callback: Callable[[T], None] | None = None

    def tell(self, value: T) -> None:
        with self._lock:
            if self._callback is None:
                self._kept.append(value)
                return
            callback = self._callback
        callback(value)

    def keep(self) -> None:
        """From now on nobody listens: what comes is for the next callback."""
        with self._lock:
            self._callback = None

    def hand_to(self, callback: Callable[[T], None]) -> None:
        """From now on; what was kept comes first, on this thread."""
        with self._lock:
            kept, self._kept = self._kept, []
            self._callback = callback
        for value in kept:
            callback(value)
