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

    With `block` greater than 1 that many neighbours stay together; rows left over come last.

    >>> permutation(5, seed=0, trial=1, epoch=2, shard=3)
    array([2, 3, 4, 0, 1])
    >>> permutation(5, seed=0, trial=1, epoch=2, shard=3, block=2)
    array([0, 1, 2, 3, 4])
    """
    words = (_Purpose.BATCHES, *seed_words(seed), trial, epoch, shard)
    if block == 1:
        return _permutation(rows, words)
    blocks = _permutation(rows // block, words)
    whole = (blocks[:, None] * block + np.arange(block)).reshape(-1)
    return np.concatenate([whole, np.arange(len(whole), rows)])


def shuffle(rows: int, *, seed: int, split: str) -> Index:
    """The order in which a split's rows are dealt out to its shards."""
    return _permutation(rows, (_Purpose.ROWS, *seed_words(seed), *split.encode()))


def seed_words(seed: int) -> tuple[int, int]:
    """A seed as two 32-bit words, so that no two seeds can give the same sequence of words."""
    if not 0 <= seed < 2**64:
        raise UsageError(f"`0 <= seed < 2**64` must hold, but got seed={seed}.")
    return seed & 0xFFFF_FFFF, seed >> 32


def _permutation(rows: int, words: tuple[int, ...]) -> Index:
    generator = np.random.Generator(np.random.PCG64(np.random.SeedSequence(words)))
    return generator.permutation(rows)
