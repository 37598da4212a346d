"""How far this process is: a count that a driver in another process can watch."""

from __future__ import annotations


class Progress:
    """Counts batches, in memory that may be shared with whoever watches over this process.

    >>> progress, shown = Progress(), memoryview(bytearray(8))
    >>> progress.show_in(shown)
    >>> progress.tick()
    >>> progress.batches, shown[0]
    (1, 1)
    """

    def __init__(self) -> None:
        self._count = memoryview(bytearray(8)).cast("Q")

    @property
    def batches(self) -> int:
        return self._count[0]

    def show_in(self, memory: memoryview) -> None:
        """Count in these 8 bytes from now on."""
        self._count = memory.cast("Q")

    def tick(self, count: int = 1) -> None:
        """A batch begins: a framework says so before each, or its visit is taken for hung."""
        self._count[0] += count


#: Of this process: a worker has one visit at a time.
PROGRESS = Progress()
