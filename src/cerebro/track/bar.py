"""How far bulk work is: one line that changes on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable
from typing import Self, TextIO

from cerebro.track.text import show_seconds

_WIDTH = 24
#: How often it is drawn: on a terminal or in a notebook, and in a pipe or a file.
_LIVE_S, _LINE_S = 0.25, 5.0
#: Speed is that of so many seconds back.
_WINDOW_S = 10.0


class Bar:
    """Shows progress on a thread of its own while it is open.

    Args:
        total: All that is to be done.
        count: How much of it is done; may be called from another thread.
        unit: What is counted, for people.
        file: Default standard error.
        is_live: Change one line in place; default where the file is a terminal.
    """

    def __init__(
        self,
        total: int,
        count: Callable[[], int],
        *,
        unit: str = "rows",
        file: TextIO | None = None,
        is_live: bool | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total
        self._count = count
        self._unit = unit
        self._file = file or sys.stderr
        self._is_live = self._file.isatty() if is_live is None else is_live
        self._clock = clock
        self._over = threading.Event()
        self._seen: list[tuple[float, int]] = []
        self._width = 0
        self._thread = threading.Thread(target=self._draw_now_and_then, name="cerebro-bar")

    def __enter__(self) -> Self:
        self._first = self._count()
        self._look()
        self._thread.start()
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        self._over.set()
        self._thread.join()
        if self._is_live:
            # Whoever called has something to say now.
            print(f"\r{'':<{self._width}}\r", end="", file=self._file, flush=True)
        elif kind is None:
            # What is done and has not been counted was done by workers that are gone.
            self._draw(self._total)

    def line(self, done: int) -> str:
        """The line for so much done.

        >>> now = iter([0.0, 2.0])
        >>> bar = Bar(1000, lambda: 0, clock=lambda: next(now))
        >>> bar.line(0), bar.line(500)
        ('0 of 1,000 rows', '500 of 1,000 rows, 250 rows/s, 2 s left')
        """
        self._seen.append((self._clock(), done))
        while len(self._seen) > 2 and self._seen[-1][0] - self._seen[0][0] > _WINDOW_S:
            del self._seen[0]
        text = f"{done:,} of {self._total:,} {self._unit}"
        seconds, moved = (self._seen[-1][i] - self._seen[0][i] for i in (0, 1))
        if seconds > 0 and moved > 0:
            left = show_seconds((self._total - done) * seconds / moved)
            text += f", {moved / seconds:,.0f} {self._unit}/s, {left} left"
        return text

    def _draw_now_and_then(self) -> None:
        while not self._over.wait(_LIVE_S if self._is_live else _LINE_S):
            self._look()

    def _look(self) -> None:
        self._draw(min(self._count() - self._first, self._total))

    def _draw(self, done: int) -> None:
        text = self.line(max(0, done))
        if not self._is_live:
            print(text, file=self._file, flush=True)
            return
        filled = _WIDTH * done // max(1, self._total)
        text = f"[{'#' * filled}{'-' * (_WIDTH - filled)}] {text}"
        # Spaces over what the line before had more.
        print(f"\r{text:<{self._width}}", end="", file=self._file, flush=True)
        self._width = len(text)
