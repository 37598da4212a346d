"""How long the loop of a visit waits for its batches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar, cast

_T = TypeVar("_T")
_END = object()


class Loading:
    """Adds up the waits of one loop: to gather, move, decode and augment rows.

    >>> loading = Loading()
    >>> list(loading.of(iter("ab"))), loading.call(max, 1, 2)
    (['a', 'b'], 2)
    >>> loading.within(0.0)
    0.0
    """

    def __init__(self) -> None:
        self._seconds = 0.0
        self._began = 0.0

    def of(self, batches: Iterator[_T]) -> Iterator[_T]:
        """The same batches, each waited for."""
        while True:
            self.begin()
            batch = next(batches, _END)
            self.end()
            if batch is _END:
                return
            yield cast(_T, batch)

    def call(self, function: Callable[..., _T], *arguments: Any) -> _T:
        """What a function makes of a batch before the step."""
        self.begin()
        made = function(*arguments)
        self.end()
        return made

    def begin(self) -> None:
        """The loop waits from now on."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """The loop goes on."""
        self._seconds += time.perf_counter() - self._began

    def within(self, loop_s: float) -> float:
        """Seconds waited, of so many that the loop took."""
        return max(0.0, min(self._seconds, loop_s))
