"""Which shards a dataset consists of, as people write it.

=============================  =====================================================
``name-@000123.tgz``           123 shards: name-000000.tgz to name-000122.tgz
``name-{000000..000122}.tar``  the same by braces; several groups, ``{a,b}``, steps
``name-*.tar``                 every file that matches, sorted
``name.shards``                an index: shards with their replicas, counts, digests
a list of these                one after the other
=============================  =====================================================
"""

from __future__ import annotations

import hashlib
import itertools
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from cerebro.data.archive.errors import quote
from cerebro.data.archive.index import SUFFIX, IndexEntry, read_index
from cerebro.data.archive.opening import is_remote, list_matching, redact
from cerebro.errors import DataError, UsageError

Path: TypeAlias = str | os.PathLike[str]
Spec: TypeAlias = Path | Sequence[Path]

#: No dataset has more shards than this; a spec that says so is a mistake or an attack.
MAX_SHARDS = 1_000_000

_COUNT = re.compile(r"@(\d+)(?=\.|$)", re.ASCII)
_NUMBERS = re.compile(r"(-?\d{1,15})\.\.(-?\d{1,15})(?:\.\.(-?\d{1,15}))?", re.ASCII)
_LETTERS = re.compile(r"([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z])")
_GROUP = re.compile(r"\{([^{}]*)\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardSource:
    """One shard: where its copies are, and what is known about it.

    >>> ShardSource(urls=("a/0.tar", "b/0.tar")).replicas(seed=1)
    ('a/0.tar', 'b/0.tar')
    """

    #: Places that hold the same bytes; any of them will do.
    urls: tuple[str, ...]
    samples: int | None = None
    bytes: int | None = None
    sha256: str | None = None

    def __str__(self) -> str:
        return redact(self.urls[0])

    def replicas(self, seed: int = 0) -> tuple[str, ...]:
        """The places in the order to try them: spread by the seed, the same in every process."""

        def weight(url: str) -> bytes:
            return hashlib.sha256(f"{seed}\0{self.urls[0]}\0{url}".encode()).digest()

        return tuple(sorted(self.urls, key=weight))


def expand(spec: Spec) -> list[ShardSource]:
    """The shards that a spec stands for, in order.

    Only globs and indexes are looked up; names that are written out are not checked for being
    there.

    >>> [str(shard) for shard in expand(["train-@02.tar", "more-{a,b}.zip"])]
    ['train-00.tar', 'train-01.tar', 'more-a.zip', 'more-b.zip']

    Raises:
        UsageError: The spec is malformed or stands for more than a million shards.
        DataError: A glob matches nothing, or an index cannot be read.
    """
    found: list[ShardSource] = []
    for text in _texts(spec):
        for name in expand_names(text, limit=MAX_SHARDS - len(found)):
            found.extend(_look_up(name))
        if len(found) > MAX_SHARDS:
            raise _too_many(text, len(found))
    return found


def expand_names(text: str, *, limit: int = MAX_SHARDS) -> Iterator[str]:
    """The names that braces and ``@count`` stand for, the last group varying fastest.

    >>> list(expand_names("{a,b}-{08..10..2}.tar"))
    ['a-08.tar', 'a-10.tar', 'b-08.tar', 'b-10.tar']
    """
    parts = _GROUP.split(_count_to_braces(text))
    if any("{" in part or "}" in part for part in parts[::2]):
        raise UsageError(
            f"braces must come in pairs and not inside each other, but got {quote(redact(text))}."
        )
    groups = [_Group.parse(part, text) for part in parts[1::2]]
    count = math.prod(len(group) for group in groups)
    if count > limit:
        raise _too_many(text, count)
    return _combine(parts[::2], groups)


def _combine(fixed: list[str], groups: list[_Group]) -> Iterator[str]:
    for chosen in itertools.product(*groups):
        yield fixed[0] + "".join(map(str.__add__, chosen, fixed[1:]))


class _Group:
    """The choices of one pair of braces; a range is counted without being made."""

    def __init__(self, choices: Sequence[str] | range, width: int = 0) -> None:
        self._choices = choices
        self._width = width

    @classmethod
    def parse(cls, inner: str, text: str) -> _Group:
        numbers = _NUMBERS.fullmatch(inner)
        if numbers:
            return cls._of_numbers(numbers, text)
        letters = _LETTERS.fullmatch(inner)
        if letters:
            first, last = (ord(end) for end in letters.groups() if end)
            step = 1 if first <= last else -1
            return cls([chr(code) for code in range(first, last + step, step)])
        if "," in inner and ".." not in inner:
            return cls(inner.split(","))
        raise UsageError(
            "braces must hold a range such as {000000..000122} or a list such as {a,b}, but got "
            f"{quote('{' + inner + '}')} in {quote(redact(text))}."
        )

    @classmethod
    def _of_numbers(cls, match: re.Match[str], text: str) -> _Group:
        first, last = int(match[1]), int(match[2])
        step = abs(int(match[3] or 1))
        if step == 0:
            raise UsageError(f"the step of a range must not be 0, but is in {quote(redact(text))}.")
        ends = [match[1].lstrip("-"), match[2].lstrip("-")]
        is_padded = any(len(end) > 1 and end.startswith("0") for end in ends)
        width = max(map(len, match.group(1, 2))) if is_padded else 0
        if first <= last:
            return cls(range(first, last + 1, step), width)
        return cls(range(first, last - 1, -step), width)

    def __len__(self) -> int:
        return len(self._choices)

    def __iter__(self) -> Iterator[str]:
        for choice in self._choices:
            yield choice if isinstance(choice, str) else f"{choice:0{self._width}d}"


def _count_to_braces(text: str) -> str:
    """`a-@000123.tgz` as `a-{000000..000122}.tgz`; an @ before the file name means nothing."""
    folder, slash, name = text.rpartition("/")
    counts = _COUNT.findall(name)
    if not counts:
        return text
    if len(counts) > 1:
        raise UsageError(f"a spec may have one @count, but got {quote(redact(text))}.")
    (digits,) = counts
    if len(digits) > 15 or int(digits) > MAX_SHARDS:
        raise _too_many(text, digits)
    if int(digits) == 0:
        raise UsageError(
            f"`count >= 1` must hold in @count, but got @{digits} in {quote(redact(text))}."
        )
    last = f"{int(digits) - 1:0{len(digits)}d}"
    return folder + slash + _COUNT.sub(f"{{{'0' * len(digits)}..{last}}}", name)


def _texts(spec: Spec) -> list[str]:
    if isinstance(spec, str | os.PathLike):
        texts = [os.fspath(spec)]
    elif isinstance(spec, Sequence) and not isinstance(spec, bytes | bytearray):
        texts = [os.fspath(part) for part in spec]
    else:
        raise UsageError(
            f"shards must be a name or a list of names, but got {type(spec).__name__}."
        )
    if not texts:
        raise UsageError("shards must be at least one name, but got an empty list.")
    for text in texts:
        _check_text(text)
    return texts


def _check_text(text: str) -> None:
    if not isinstance(text, str) or not text.strip() or "\0" in text or "\n" in text:
        raise UsageError(f"a shard must be named by one line of text, but got {quote(text)}.")
    if text.startswith("pipe:"):
        raise UsageError(
            "shards must be files or URLs: `pipe:` would run a command, and is refused. "
            "Give the URL that the command reads."
        )


def _look_up(name: str) -> Iterator[ShardSource]:
    magic = "*" if is_remote(name) else "*?["
    if any(sign in name for sign in magic):
        matching = list_matching(name)
        if not matching:
            raise DataError(f"shards must be there, but nothing matches {quote(redact(name))}.")
        for match in matching:
            yield from _read(match)
    else:
        yield from _read(name)


def _read(name: str) -> Iterator[ShardSource]:
    if name.endswith(SUFFIX):
        yield from map(_as_source, read_index(name).shards)
    else:
        yield ShardSource(urls=(name,))


def _as_source(entry: IndexEntry) -> ShardSource:
    return ShardSource(
        urls=entry.urls, samples=entry.samples, bytes=entry.bytes, sha256=entry.sha256
    )


def _too_many(text: str, count: int | str) -> UsageError:
    shown = str(count) if len(str(count)) < 25 else f"a number of {len(str(count))} digits"
    return UsageError(
        f"a spec may stand for at most {MAX_SHARDS} shards, but {quote(redact(text))} "
        f"makes {shown}."
    )
