"""A goal: the run ends the moment a trial has it."""

from __future__ import annotations

from cerebro.errors import UsageError
from cerebro.search.checks import check_real, check_whole
from cerebro.search.decision import Decision, Halt, Report
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.types import Json, Mode, trial_id


class Goal(Endless):
    """Ends the run when a metric reaches a target, at a visit already where visits have the metric.

    Args:
        metric: What to look at.
        target: Reached from below with mode "max", from above with "min".
        max_epochs: Epochs that a trial may take to get there: those of the run.

    >>> goal = Goal("val_accuracy", 0.97, mode=Mode.MAX)
    >>> goal.evaluated(Report(3, 4, 32, {"val_accuracy": 0.9712}))
    [Halt(reason='t0003 reached val_accuracy 0.9712 >= 0.97 in epoch 4')]
    """

    def __init__(
        self, metric: str, target: float, *, mode: Mode, max_epochs: int | None = None
    ) -> None:
        self._scale = Scale(metric, mode)
        self._target = check_real("target", target)
        if max_epochs is not None:
            check_whole("max_epochs", max_epochs, 1)
        self.max_epochs = max_epochs

    def visited(self, report: Report) -> list[Decision]:
        return self._judge(report, report.epochs + 1)

    def evaluated(self, report: Report) -> list[Decision]:
        return self._judge(report, report.epochs)

    def describe(self) -> dict[str, Json]:
        own: dict[str, Json] = {"target": self._target, "max_epochs": self.max_epochs}
        return {"name": "goal", **self._scale.describe(), **own}

    def _sign(self) -> str:
        return f"{'>=' if self._scale.mode is Mode.MAX else '<='} {self._target:.6g}"

    def _judge(self, report: Report, epoch: int) -> list[Decision]:
        score = self._scale.score(report.metrics)
        if score < self._scale.score({self._scale.metric: self._target}):
            return []
        reached = f"{self._scale.show(score)} {self._sign()}"
        return [Halt(f"{trial_id(report.trial)} reached {reached} in epoch {epoch}")]


def check_epochs(epochs: int, most: int | None, name: str = "num_epochs") -> None:
    """Raise UsageError where a trial would be trained for more epochs than its goal allows."""
    if most is not None and epochs > most:
        raise UsageError(
            f"`{name} <= goal.max_epochs` must hold, but got {name}={epochs} and max_epochs={most}."
        )
