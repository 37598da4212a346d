"""Which rows of a batch, or of a shard, are a rank's own."""

from __future__ import annotations

from dataclasses import dataclass


def part_of(rows: int, rank: int, size: int) -> tuple[int, int]:
    """First row and the one after the last, of so many rows, for one of `size` ranks.

    Neighbouring rows, all rows exactly once, the first ranks one more where they do not divide
    evenly.

    >>> [part_of(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, more = divmod(rows, size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


@dataclass(frozen=True, slots=True)
class Shares:
    """How the batches of a visit are shared out.

    The last batch may be too small for all ranks. Where full batches have two rows and more for
    each, so it has for those that take part in it: batch norm can do nothing with a row alone.

    >>> shares = Shares(batch_size=8, size=3)
    >>> [shares.part(8, rank) for rank in range(3)], [shares.part(3, rank) for rank in range(3)]
    ([(0, 3), (3, 6), (6, 8)], [(0, 3), (3, 3), (3, 3)])
    """

    batch_size: int
    size: int

    def part(self, rows: int, rank: int) -> tuple[int, int]:
        """First row and the one after the last that a rank has of a batch of so many rows."""
        ranks = self.size
        if self.batch_size >= 2 * ranks > rows:
            ranks = max(1, rows // 2)
        return part_of(rows, rank, ranks) if rank < ranks else (rows, rows)

    def count(self, rows: int, rank: int) -> int:
        """How many rows that is."""
        first, last = self.part(rows, rank)
        return last - first
