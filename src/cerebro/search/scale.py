"""The metric a search goes by, turned so that larger is better."""

from __future__ import annotations

import math

from cerebro.types import Json, Metrics, Mode


class Scale:
    """Scores: the metric, or its negative where smaller is better.

    >>> scale = Scale("val_loss", Mode.MIN)
    >>> scale.score({"val_loss": 0.5}), scale.score({}), scale.show(-0.5)
    (-0.5, -inf, 'val_loss 0.5')
    """

    __slots__ = ("metric", "mode")

    def __init__(self, metric: str, mode: Mode) -> None:
        self.metric = metric
        self.mode = Mode(mode)

    def score(self, metrics: Metrics) -> float:
        """Larger is better; the worst there is where the metric is missing or not finite."""
        value = metrics.get(self.metric, math.nan)
        if not math.isfinite(value):
            return -math.inf
        return value if self.mode is Mode.MAX else -value

    def show(self, score: float) -> str:
        """The metric that gave a score, for people."""
        return f"{self.metric} {score if self.mode is Mode.MAX else -score:.6g}"

    def describe(self) -> dict[str, Json]:
        return {"metric": self.metric, "mode": str(self.mode)}
