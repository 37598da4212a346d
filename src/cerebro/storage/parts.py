"""Files that grow where nothing can be appended to: numbered parts beside their place.

A file that was appended to is a set of parts, `journal.jsonl.part-000001-000000000000420`: the
generation, and the byte at which the part begins. What several parts hold may be in one more,
whose name tells its end as well. The bytes at a place never change within a generation, so parts
can be merged, and the merged ones removed, while others read or even append. An object with the
name of the file itself counts before all parts: that is how a file is replaced in one step.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

_NAME = re.compile(r"(.+)\.part-(\d{6,})-(\d{15,})(?:-(\d{15,}))?", re.ASCII)


class Part(NamedTuple):
    """Bytes `start` to `end` of a file, in the object `name` beside it."""

    name: str
    generation: int
    start: int
    end: int
    is_merged: bool = False


def part_name(file: str, generation: int, start: int, end: int | None = None) -> str:
    """The name of a part; that of a merged one tells its end.

    Of two who append at the same place both mean the same name, so one of them fails.

    >>> part_name("journal.jsonl", 1, 420)
    'journal.jsonl.part-000001-000000000000420'
    """
    name = f"{file}.part-{generation:06d}-{start:015d}"
    return name if end is None else f"{name}-{end:015d}"


def parse_part(name: str, size: int) -> tuple[str, Part] | None:
    """The file that an object of this name and size is a part of; None if it is no part.

    >>> parse_part("log.part-000001-000000000000420", 10)[1].end
    430
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    file, generation, start, end = found.groups()
    begin = int(start)
    if end is not None and begin + size != int(end):
        return None
    return file, Part(name, int(generation), begin, begin + size, end is not None)


def chain(parts: Iterable[Part]) -> list[Part]:
    """The parts that make up a file, in order; none if it has no beginning.

    >>> chain([Part("a", 1, 0, 3), Part("b", 1, 3, 5), Part("ab", 1, 0, 5, True)])
    [Part(name='ab', generation=1, start=0, end=5, is_merged=True)]
    """
    parts = list(parts)
    generation = max((part.generation for part in parts if part.start == 0), default=None)
    best: dict[int, Part] = {}
    for part in parts:
        if part.generation == generation:
            known = best.get(part.start)
            # What was merged is what everybody has seen.
            if known is None or (part.is_merged, part.end) > (known.is_merged, known.end):
                best[part.start] = part
    found: list[Part] = []
    place = 0
    while place in best:
        part = best.pop(place)
        found.append(part)
        place = part.end
    return found


def newest(parts: Iterable[Part]) -> int:
    """The highest generation there is; 0 without parts."""
    return max((part.generation for part in parts), default=0)
