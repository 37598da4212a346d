"""Lists of nodes as SLURM writes them: `gpu-[01-04,09],login`."""

from __future__ import annotations

import re
from collections.abc import Iterator

from cerebro.errors import UsageError

_PART = re.compile(r"([^\[\],]*)(?:\[([^\[\]]*)\])?")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
#: More than any cluster has: a list that gives more is damaged.
_MOST = 100_000


def expand_nodelist(text: str) -> list[str]:
    """The names of all nodes, in order.

    >>> expand_nodelist("n[1-3,7],gpu-[09-11]-ib")
    ['n1', 'n2', 'n3', 'n7', 'gpu-09-ib', 'gpu-10-ib', 'gpu-11-ib']
    """
    names: list[str] = []
    for word in _split(text):
        names += _expand(word, text)
        if len(names) > _MOST:
            raise UsageError(f"a list of nodes names at most {_MOST} of them, but {text!r} more.")
    return names


def _split(text: str) -> Iterator[str]:
    """At the commas that stand in no brackets."""
    word, depth = "", 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and depth == 0:
            yield word
            word = ""
        else:
            word += letter
    if depth != 0:
        raise _wrong(text)
    if word:
        yield word


def _expand(word: str, text: str) -> list[str]:
    """Every combination of what its brackets stand for; the last one runs fastest."""
    names, end = [""], 0
    while end < len(word):
        found = _PART.match(word, end)
        if found is None or found.end() == end:
            raise _wrong(text)
        end = found.end()
        plain, bracket = found.groups()
        numbers = [""] if bracket is None else list(_numbers(bracket, text))
        if len(names) * len(numbers) > _MOST:
            raise _wrong(text)
        names = [name + plain + number for name in names for number in numbers]
    return names


def _numbers(bracket: str, text: str) -> Iterator[str]:
    for part in bracket.split(","):
        found = _RANGE.fullmatch(part)
        if found is None:
            raise _wrong(text)
        low, high = found.group(1), found.group(2) or found.group(1)
        if not 0 <= int(high) - int(low) < _MOST:
            raise _wrong(text)
        for number in range(int(low), int(high) + 1):
            yield str(number).zfill(len(low))


def _wrong(text: str) -> UsageError:
    return UsageError(
        f"a list of nodes must read like n[1-3,7] or gpu-[01-04], but got {text!r}. Set "
        "MASTER_ADDR to the name of the first node."
    )
