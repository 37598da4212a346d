"""The order in which a unit visits shards: data, never timing."""

from __future__ import annotations

from collections.abc import Iterator

from cerebro.mop.visit import Phase


def shard_at(start: int, epoch: int, step: int, shards: int) -> int:
    """The train shard of one step: a rotation that begins one shard later every epoch.

    >>> [shard_at(2, 1, step, 4) for step in range(4)]
    [3, 0, 1, 2]
    """
    return (start + epoch + step) % shards


def visits(
    start: int, epochs: int, train_shards: int, val_shards: int
) -> Iterator[tuple[int, Phase, int, int]]:
    """Every (epoch, phase, step, shard) of a unit; the eval visits of an epoch commute.

    >>> [(str(phase), shard) for _, phase, _, shard in visits(1, 1, 2, 1)]
    [('train', 1), ('train', 0), ('eval', 0)]
    """
    for epoch in range(epochs):
        for step in range(train_shards):
            yield epoch, Phase.TRAIN, step, shard_at(start, epoch, step, train_shards)
        for step in range(val_shards):
            yield epoch, Phase.EVAL, step, step
