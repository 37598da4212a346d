"""Names of a model's variables that are the same in every process."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

_COUNT = re.compile(r"_\d+$")


def stable_paths(paths: Iterable[str]) -> list[str]:
    """Paths with the numbers that Keras counts up in a process replaced by such of their own.

    Keras names layers that have no name after their class, with the number that they have in the
    process. Here each name begins at none again, in the order in which the variables come.

    >>> stable_paths(["model_7/dense_8/kernel", "model_7/dense_8/bias", "model_7/dense_9/kernel"])
    ['model/dense/kernel', 'model/dense/bias', 'model/dense_1/kernel']
    >>> stable_paths(["seed", "seed"])
    ['seed', 'seed_1']
    """
    known: dict[tuple[str, ...], str] = {}
    used: Counter[str] = Counter()
    found = []
    for path in paths:
        parts = path.split("/")
        for depth in range(1, len(parts)):
            scope = tuple(parts[:depth])
            if scope not in known:
                known[scope] = _next(known.get(scope[:-1], ""), scope[-1], used)
        found.append(_next(known.get(tuple(parts[:-1]), ""), parts[-1], used))
    return found


def _next(parent: str, name: str, used: Counter[str]) -> str:
    """A name below `parent` that is not used yet."""
    base = f"{parent}/{_COUNT.sub('', name)}".lstrip("/")
    number = used[base]
    used[base] += 1
    return f"{base}_{number}" if number else base
