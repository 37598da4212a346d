"""The toy framework's model: what it says of rows, and how good that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cerebro.data import BatchBuffers, Shard
from cerebro.train.progress import PROGRESS
from cerebro.train.score.calls import MemberScore, ScoreCall, ScoreMode, ScoreReport
from cerebro.train.score.columns import Predictions

Array: TypeAlias = npt.NDArray[np.float64]
Labels: TypeAlias = npt.NDArray[np.int64]


class ToyModel:
    """The trained weights, ready for use."""

    def __init__(self, weight: Array, bias: Array) -> None:
        self.weight = weight
        self.bias = bias

    def scores(self, x: npt.ArrayLike) -> Array:
        """One number a class for each row."""
        return np.asarray(x, np.float64) @ self.weight + self.bias


class _Member:
    """One model, and what it made of the batches so far."""

    def __init__(self, model: ToyModel) -> None:
        self._model = model
        self._losses: list[float] = []
        self._hits = 0
        self._rows = 0
        self._predictions = Predictions("ToyTask.predict")

    def test(self, x: Array, y: Labels) -> None:
        scores = self._model.scores(x)
        self._losses.append(loss_and_slope(scores, y)[0] * len(y))
        self._hits += int((scores.argmax(1) == y).sum())
        self._rows += len(y)

    def predict(self, x: Array) -> None:
        scores = self._model.scores(x)
        self._predictions.add({"class": scores.argmax(1), "score": scores}, len(x))

    def score(self) -> MemberScore:
        if not self._rows:
            return MemberScore(columns=self._predictions.columns())
        sums = {"loss": (math.fsum(self._losses), self._rows)}
        return MemberScore(sums={**sums, "accuracy": (float(self._hits), self._rows)})


def score_models(call: ScoreCall, shard: Shard, models: Sequence[ToyModel]) -> ScoreReport:
    """Test models on a shard, or let them predict it."""
    members = [_Member(model) for model in models]
    buffers = BatchBuffers(shard.schema, call.batch_size)
    for rows in buffers.fill(shard):
        PROGRESS.tick()
        x = buffers.tensors["x"][:rows].astype(np.float64)
        for member in members:
            if call.mode is ScoreMode.TEST:
                member.test(x, buffers.tensors["y"][:rows])
            else:
                member.predict(x)
    return ScoreReport(rows=shard.rows, members=tuple(member.score() for member in members))


def loss_and_slope(scores: Array, y: Labels) -> tuple[float, Array]:
    """The mean loss of a batch and its gradient with respect to the scores."""
    rows = len(y)
    shifted = scores - scores.max(1, keepdims=True)
    logs = shifted - np.log(np.exp(shifted).sum(1, keepdims=True))
    slope = np.exp(logs)
    slope[np.arange(rows), y] -= 1.0
    return float(-logs[np.arange(rows), y].sum() / rows), slope / rows
