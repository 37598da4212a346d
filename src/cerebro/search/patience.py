"""Patience: a trial that gets no better is stopped."""

from __future__ import annotations

from cerebro.search.checks import check_real, check_whole
from cerebro.search.decision import Decision, Report, Stop
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.types import Json, Mode, Params, TrialStatus


class Patience(Endless):
    """Stops a trial after so many epochs without an improvement of more than `min_delta`.

    Args:
        patience: Epochs without improvement.
        min_delta: What an epoch must be better by to count as one.
        grace: Epochs that every trial gets.

    >>> stopper = Patience(metric="loss", mode=Mode.MIN, epochs=9, patience=1)
    >>> _ = stopper.added(0, {}, 0)
    >>> stopper.evaluated(Report(0, 1, 4, {"loss": 0.5}))
    []
    >>> stopper.evaluated(Report(0, 2, 8, {"loss": 0.6}))[0].reason
    'no better for 1 epochs than loss 0.5 after epoch 1'
    """

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode,
        epochs: int,
        patience: int = 3,
        min_delta: float = 0.0,
        grace: int = 0,
    ) -> None:
        self._scale = Scale(metric, mode)
        self._epochs = epochs
        self._patience = check_whole("patience", patience, 1)
        self._min_delta = check_real("min_delta", min_delta, least=0)
        self._grace = check_whole("grace", grace, 0)
        #: Of live trials: the last epoch, the best score and its epoch.
        self._live: dict[int, tuple[int, float, int]] = {}

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        self._live[trial] = (epochs, float("-inf"), epochs)
        return None

    def evaluated(self, report: Report) -> list[Decision]:
        trial, epochs = report.trial, report.epochs
        standing = self._live.get(trial)
        if standing is None or epochs <= standing[0]:
            return []
        _, best, since = standing
        score = self._scale.score(report.metrics)
        if score > best + self._min_delta:
            best, since = score, epochs
        self._live[trial] = (epochs, best, since)
        if epochs - since < self._patience or not self._grace <= epochs < self._epochs:
            return []
        best_epoch = f"{self._scale.show(best)} after epoch {since}"
        return [Stop(trial, f"no better for {epochs - since} epochs than {best_epoch}")]

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        self._live.pop(trial, None)
        return []

    def describe(self) -> dict[str, Json]:
        own: dict[str, Json] = {"patience": self._patience, "min_delta": self._min_delta}
        return {"name": "patience", **self._scale.describe(), **own, "grace": self._grace}
