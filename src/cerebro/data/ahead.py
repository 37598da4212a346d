"""Work done ahead of the one who needs it, on threads."""

from __future__ import annotations

import concurrent.futures
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

Given = TypeVar("Given")
Made = TypeVar("Made")


def ahead(make: Callable[[Given], Made], items: Iterable[Given], threads: int) -> Iterator[Made]:
    """What `make` gives for each item, in order; so many threads work ahead of who asks.

    >>> list(ahead(str.upper, ["a", "b", "c"], threads=2))
    ['A', 'B', 'C']
    """
    waiting: deque[concurrent.futures.Future[Made]] = deque()
    pool = concurrent.futures.ThreadPoolExecutor(threads)
    try:
        for item in items:
            waiting.append(pool.submit(make, item))
            if len(waiting) > threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        pool.shutdown(cancel_futures=True)
