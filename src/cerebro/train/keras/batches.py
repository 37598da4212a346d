"""Batches of a shard for a Keras model."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

from cerebro.data import BatchBuffers, Shard, batch_order, iter_batches
from cerebro.errors import UsageError
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.feed import Fed, Feed
from cerebro.train.progress import PROGRESS
from cerebro.train.visit import VisitCall

#: Buffers of different sizes that are kept.
_KEPT = 4
#: Rows that a model is made with which declares no inputs.
_ROWS = 2


class Batches:
    """Gives out batches as arrays, in memory that is used again from batch to batch."""

    def __init__(self) -> None:
        self._buffers: OrderedDict[tuple[int, tuple[str, ...]], BatchBuffers] = OrderedDict()

    def columns(self, shard: Shard, size: int, order: Any = None) -> Iterator[dict[str, Any]]:
        """Columns by name; the rows that `order` names, default all as they lie."""
        key = size, tuple(shard.schema)
        buffers = self._buffers.pop(key, None) or BatchBuffers(shard.schema, size)
        self._buffers[key] = buffers
        while len(self._buffers) > _KEPT:
            self._buffers.popitem(last=False)
        for batch in iter_batches(shard, size, order, buffers):
            PROGRESS.tick()
            yield dict(batch)

    def shuffled(self, shard: Shard, call: VisitCall, size: int, feed: Feed) -> Iterator[Fed]:
        """The batches of a training visit, in its seeded order."""
        trial = 0 if call.same_order else call.trials[0]
        order = batch_order(shard, size, seed=call.seed, trial=trial, epoch=call.epoch)
        return self._fed(shard, size, feed, order)

    def in_order(self, shard: Shard, size: int, feed: Feed) -> Iterator[Fed]:
        """The batches of an evaluation."""
        return self._fed(shard, size, feed, None)

    def sample(self, shard: Shard, compiled: Compiled) -> Any:
        """Inputs of a few rows."""
        buffers = BatchBuffers(shard.schema, min(_ROWS, shard.rows))
        batch = next(iter_batches(shard, buffers.batch_size, None, buffers))
        return Feed(compiled, compiled.model)(batch, has_labels=False).x

    def free(self) -> None:
        """Give back the memory of batches."""
        self._buffers.clear()

    def _fed(self, shard: Shard, size: int, feed: Feed, order: Any) -> Iterator[Fed]:
        rows = 0
        for batch in self.columns(shard, size, order):
            fed = feed(batch)
            rows += fed.rows
            # All its rows may have been left out.
            if fed.rows:
                yield fed
        if not rows:
            raise UsageError(
                f"transformation_fn must leave rows to train or test on, but left none of the "
                f"{shard.rows} in shard {shard.number} of {shard.split}."
            )
