"""Test and predict: several Keras models see the batches of a shard together."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import numpy as np

from cerebro.data import Shard
from cerebro.train.keras.batches import Batches
from cerebro.train.keras.build import Parts, seed_everything
from cerebro.train.keras.meter import Meter, test_on
from cerebro.train.score.calls import MemberScore, ScoreCall, ScoreMode, ScoreReport
from cerebro.train.score.columns import Predictions
from cerebro.train.seeds import derive_seed


class _Member:
    """One model, and what it made of the batches so far."""

    def __init__(self, name: str, parts: Parts, stack: ExitStack, *, is_test: bool) -> None:
        self._parts = parts
        self._predictions = Predictions(f"{name}.build(params).model")
        self._meter: Meter | None = None
        if is_test:
            parts.compile()
            self._meter = stack.enter_context(Meter(parts.model))

    def see(self, batch: dict[str, Any], rows: int) -> None:
        model, feed = self._parts.model, self._parts.feed
        fed = feed(batch, has_labels=self._meter is not None)
        if self._meter is None:
            found = feed.predictions(model.predict_on_batch(fed.x))
            self._predictions.add(found, rows)
        elif fed.rows:
            self._meter.add(test_on(model, fed), fed.rows)

    def score(self) -> MemberScore:
        sums = {} if self._meter is None else self._meter.sums()
        return MemberScore(sums=sums, columns=self._predictions.columns())


def score_shard(
    name: str, batches: Batches, call: ScoreCall, shard: Shard, models: Sequence[Parts]
) -> ScoreReport:
    """Test models on a shard, or let them predict it; see `Framework.score`."""
    is_test = call.mode is ScoreMode.TEST
    with ExitStack() as stack:
        members = [_Member(name, parts, stack, is_test=is_test) for parts in models]
        size = min(call.batch_size, shard.rows)
        for number, batch in enumerate(batches.columns(shard, size)):
            rows = min(size, shard.rows - number * size)
            for member in members:
                # Each but the last gets arrays of its own: a transformation_fn may change them.
                own = batch if member is members[-1] else _copied(batch)
                seed_everything(derive_seed("score", shard.number, number))
                member.see(own, rows)
        scores = tuple(member.score() for member in members)
    return ScoreReport(rows=shard.rows, members=scores)


def _copied(batch: dict[str, Any]) -> dict[str, Any]:
    return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in batch.items()}
