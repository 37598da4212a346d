"""Random orders of rows that depend on nothing but the numbers given."""

from __future__ import annotations

import enum

import numpy as np

from cerebro.data.columns import Index
from cerebro.errors import UsageError


class _Purpose(enum.IntEnum):
    """Keeps orders drawn for different ends independent. Never change a number."""

    BATCHES = 1
    ROWS = 2


def permutation(
    rows: int, *, seed: int, trial: int, epoch: int, shard: int, block: int = 1
) -> Index:
    """The order in which a trial sees a shard's rows in an epoch.

    With `block` greater than 1 that many neighbours stay together, others in every epoch; rows that
    fill no block come last.

    >>> permutation(5, seed=0, trial=1, epoch=2, shard=3)
    array([2, 3, 4, 0, 1])
    >>> permutation(9, seed=0, trial=1, epoch=2, shard=3, block=2)
    array([4, 5, 6, 7, 2, 3, 0, 1, 8])
    """
    generator = _generator((_Purpose.BATCHES, *seed_words(seed), trial, epoch, shard))
    if block == 1 or block > rows:
        return generator.permutation(rows)
    first = int(generator.integers(block))
    blocks = generator.permutation((rows - first) // block)
    last = first + len(blocks) * block
    whole = (blocks[:, None] * block + np.arange(first, first + block)).reshape(-1)
    return np.concatenate([whole, np.arange(first), np.arange(last, rows)])


def shuffle(rows: int, *, seed: int, split: str) -> Index:
    """The order in which a split's rows are dealt out to its shards."""
    return _generator((_Purpose.ROWS, *seed_words(seed), *split.encode())).permutation(rows)


def generator(seed: int, name: str) -> np.random.Generator:
    """Random numbers for an end that has a name, which must not be that of a split."""
    return _generator((_Purpose.ROWS, *seed_words(seed), *name.encode()))


def seed_words(seed: int) -> tuple[int, int]:
    """A seed as two 32-bit words, so that no two seeds can give the same sequence of words."""
    if not 0 <= seed < 2**64:
        raise UsageError(f"`0 <= seed < 2**64` must hold, but got seed={seed}.")
    return seed & 0xFFFF_FFFF, seed >> 32


def _generator(words: tuple[int, ...]) -> np.random.Generator:
    return np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
