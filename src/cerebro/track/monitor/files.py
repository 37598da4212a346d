"""Files of /proc, opened once and read again and again."""

from __future__ import annotations

import os

_PIECE = 1 << 16


class ProcFile:
    """Its content is made anew at every read; opening it each time would cost twice as much.

    >>> with_self = ProcFile("/proc/self/stat")
    >>> int(with_self.read().split()[0]) == os.getpid()
    True
    >>> with_self.close()
    """

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read(self) -> bytes:
        """All of it, now; OSError if it is about a process that is gone."""
        content = os.pread(self._fd, _PIECE, 0)
        place = len(content)
        # Long ones come in pieces, and only an empty piece says that there are no more.
        while place >= 4000 and (piece := os.pread(self._fd, _PIECE, place)):
            content += piece
            place += len(piece)
        return content

    def close(self) -> None:
        os.close(self._fd)


class Total:
    """A counter that never goes back, though what it follows may begin again from zero.

    >>> total = Total()
    >>> [total.follow(count) for count in (100, 130, 20)]
    [0, 30, 50]
    """

    def __init__(self) -> None:
        self._last: int | None = None
        self._total = 0

    def follow(self, count: int) -> int:
        """What was added since the first call."""
        if self._last is not None:
            self._total += count - self._last if count >= self._last else count
        self._last = count
        return self._total
