"""Which rows become which shard, from how many rows each part was found to have. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """Neighbouring rows of a segment: a range of bytes of a staged file."""

    file: str
    offset: int
    bytes: int
    #: Of the segment's rows, those from `start` up to `stop`.
    start: int
    stop: int

    @property
    def rows(self) -> int:
        return self.stop - self.start


def count(pieces: Sequence[Piece]) -> int:
    """All rows of some pieces."""
    return sum(piece.rows for piece in pieces)


def even_out(heaps: Sequence[Sequence[Piece]], sizes: Sequence[int]) -> list[list[Piece]]:
    """Heaps of these sizes: what some have too much of, others get; all else stays.

    >>> heap = [Piece(file="a", offset=0, bytes=9, start=0, stop=5)]
    >>> [[(p.start, p.stop) for p in pieces] for pieces in even_out([heap, []], [2, 3])]
    [[(0, 2)], [(2, 5)]]
    """
    if sum(map(count, heaps)) != sum(sizes):
        raise ValueError(f"{sum(map(count, heaps))} rows cannot be dealt out as {list(sizes)}.")
    spare: deque[Piece] = deque()
    out: list[list[Piece]] = []
    for heap, size in zip(heaps, sizes, strict=True):
        kept, rest = cut(heap, size)
        out.append(kept)
        spare.extend(rest)
    for pieces, size in zip(out, sizes, strict=True):
        lacking = size - count(pieces)
        taken, rest = cut(list(spare), lacking)
        pieces += taken
        spare = deque(rest)
    return out


def cut(pieces: Sequence[Piece], rows: int) -> tuple[list[Piece], list[Piece]]:
    """The first so many rows (or all there are), and the others."""
    first: list[Piece] = []
    for number, piece in enumerate(pieces):
        if piece.rows <= rows:
            first.append(piece)
            rows -= piece.rows
            continue
        rest = list(pieces[number + 1 :])
        if rows:
            first.append(replace(piece, stop=piece.start + rows))
        return first, [replace(piece, start=piece.start + rows), *rest]
    return first, []


def cut_up(pieces: Sequence[Piece], sizes: Sequence[int]) -> list[list[Piece]]:
    """Consecutive parts of these sizes."""
    out: list[list[Piece]] = []
    rest = list(pieces)
    for size in sizes:
        part, rest = cut(rest, size)
        out.append(part)
    return out
