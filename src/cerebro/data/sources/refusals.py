"""Which rows, and which cells of them, a reader refuses: found by halving."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

_BLOCK = 4096


def find_refused(count: int, is_read: Callable[[int, int], bool]) -> Iterator[int]:
    """Every row that cannot be read alone; `is_read(start, stop)` tells whether these rows can.

    >>> list(find_refused(10, lambda start, stop: not start <= 7 < stop))
    [7]
    """
    for start in range(0, count, _BLOCK):
        yield from _within(start, min(start + _BLOCK, count), is_read)


def _within(start: int, stop: int, is_read: Callable[[int, int], bool]) -> Iterator[int]:
    if is_read(start, stop):
        return
    if stop - start == 1:
        yield start
        return
    middle = (start + stop) // 2
    yield from _within(start, middle, is_read)
    yield from _within(middle, stop, is_read)


def first_refused(names: Sequence[str], is_read: Callable[[Sequence[str]], bool]) -> str | None:
    """The first column that cannot be read; None if each can.

    >>> first_refused(["id", "a", "b"], lambda names: "b" not in names)
    'b'
    """
    if is_read(names):
        return None
    start, stop = 0, len(names)
    while stop - start > 1:
        middle = (start + stop) // 2
        if is_read(names[start:middle]):
            start = middle
        else:
            stop = middle
    return names[start]
