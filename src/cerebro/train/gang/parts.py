"""Which rows of a batch, or of a shard, are a rank's own."""

from __future__ import annotations


def part_of(rows: int, rank: int, size: int) -> tuple[int, int]:
    """First row and the one after the last, of so many rows, for one of `size` ranks.

    Neighbouring rows, all rows exactly once, the first ranks one more where they do not divide
    evenly. A batch with fewer rows gives no rank more.

    >>> [part_of(7, rank, 3) for rank in range(3)]
    [(0, 3), (3, 5), (5, 7)]
    """
    each, more = divmod(rows, size)
    first = rank * each + min(rank, more)
    return first, first + each + (rank < more)


def count_of(rows: int, rank: int, size: int) -> int:
    """How many rows `part_of` gives a rank.

    >>> [count_of(2, rank, 3) for rank in range(3)]
    [1, 1, 0]
    """
    return rows // size + (rank < rows % size)
