"""Which rows of the raw tables go to which shard."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from cerebro.data.columns import Index
from cerebro.data.order import shuffle
from cerebro.errors import DataError, UsageError
from cerebro.types import Split

#: Splits whose rows are put in random order, and of which a fraction may be asked for. The others
#: stay as they came: answers are wanted for each row, in order.
SHUFFLED = (Split.TRAIN, Split.VAL)


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """How one split is cut."""

    split: Split
    #: Rows that were read, and how many of them are prepared.
    rows: int
    taken: int
    shards: int
    seed: int
    #: The file with the raw rows.
    staged: str
    #: Where files named in the rows are; None if there is no such place.
    object_dir: str | None = None
    #: Columns whose values name such files.
    features: tuple[str, ...] = ()
    #: Rows are samples of archives, whose fields are decoded by their extension.
    is_archive: bool = False

    def rows_of(self, number: int) -> Index:
        """The rows of a shard, in their order."""
        size, larger = divmod(self.taken, self.shards)
        start = number * size + min(number, larger)
        part = slice(start, start + self.size_of(number))
        if self.split not in SHUFFLED:
            return np.arange(part.start, part.stop)
        return _order(self.rows, self.seed, self.split)[: self.taken][part]

    def size_of(self, number: int) -> int:
        """The rows of a shard, counted; shards differ by one row at most."""
        size, larger = divmod(self.taken, self.shards)
        return size + (number < larger)


@functools.lru_cache(maxsize=len(SHUFFLED))
def _order(rows: int, seed: int, split: Split) -> Index:
    return shuffle(rows, seed=seed, split=split)


def cut(
    rows: Mapping[Split, int], *, shards: int, fraction: float, rows_per_shard: int | None = None
) -> dict[Split, tuple[int, int]]:
    """Rows taken of each split, and its shards: so many for train, of that size for the others.

    Without train rows shards have `rows_per_shard`, as those of a dataset that is there already, or
    there are so many of each split.

    >>> cut({Split.TRAIN: 1000, Split.VAL: 100, Split.TEST: 130}, shards=8, fraction=0.5)
    {<Split.TRAIN: 'train'>: (500, 8), <Split.VAL: 'val'>: (50, 1), <Split.TEST: 'test'>: (130, 3)}
    """
    is_number = isinstance(fraction, int | float) and not isinstance(fraction, bool)
    if not is_number or not 0 < fraction <= 1:
        raise UsageError(f"`0 < fraction <= 1` must hold, but got fraction={fraction!r}.")
    taken = {
        split: max(1, round(count * fraction)) if split in SHUFFLED else count
        for split, count in rows.items()
    }
    train = taken.get(Split.TRAIN)
    if train is not None:
        if train < shards:
            raise DataError(
                f"every shard needs a row, but there are {train} training rows for "
                f"shards={shards}. Ask for fewer shards."
            )
        rows_per_shard = -(-train // shards)
    found: dict[Split, tuple[int, int]] = {}
    for split, count in taken.items():
        parts = shards if split is Split.TRAIN else min(count, shards)
        if split is not Split.TRAIN and rows_per_shard is not None:
            parts = -(-count // rows_per_shard)
        found[split] = (count, parts)
    return found
