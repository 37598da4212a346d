"""What one file, or one table in memory, gave."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import pyarrow as pa

from cerebro.data.sources.bad_rows import BadRow
from cerebro.data.sources.cells import suggest
from cerebro.data.sources.content import Positions
from cerebro.errors import DataError

ID = "id"
NO_LINES: Positions = np.zeros(0, np.int64)

#: How many bad cells of a file with so many rows are enough to give up on it.
Enough: TypeAlias = Callable[[int], int]


@dataclass(frozen=True, slots=True)
class Piece:
    """The good rows of one source with their lines, and the bad ones."""

    name: str
    table: pa.Table
    lines: Positions
    bad: list[BadRow] = field(default_factory=list)
    #: How many rows there are, if it was given up with too many bad ones to look at the rest.
    given_up: int | None = None
    #: The rows that begin at these lines, as they stand in the source.
    texts: Callable[[Iterable[int]], Mapping[int, str]] = lambda lines: {}


def check_names(names: list[str], types: Mapping[str, str], where: str) -> None:
    """Raise `DataError` unless every column has a name of its own, the first being `id`."""
    if len(set(names)) < len(names) or not all(name.strip() for name in names):
        seen: set[str] = set()
        for position, name in enumerate(names, start=1):
            if not name.strip():
                raise DataError(
                    f"{where}: every column needs a name, but number {position} has none."
                )
            if name in seen:
                raise DataError(
                    f"{where}: every column needs its own name, but {name!r} is there twice."
                )
            seen.add(name)
    for name in types:
        if name not in names:
            raise DataError(
                f"{where} has no column {name!r}. It has: {', '.join(names)}."
                + suggest(name, names)
            )
    if names[0] != ID:
        found = " It is another one here: move it to the front." if ID in names else ""
        raise DataError(f"{where}: the first column must be {ID!r}, but is {names[0]!r}.{found}")


def show(raw: bytes) -> str:
    """Bytes as text that can be printed, whatever they are.

    >>> show(b"caf\\xe9")
    'caf\\\\xe9'
    """
    return raw.decode("utf-8", "backslashreplace")
