"""Patience: a trial that gets no better is stopped."""

from __future__ import annotations

from cerebro.search.checks import check_real, check_whole
from cerebro.search.decision import Decision, Promote, Report, Stop
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.types import Json, Mode, Params, TrialStatus


class Patience(Endless):
    """Stops a trial after so many epochs without an improvement of more than `min_delta`.

    Trials wait where they might be stopped, so that none is trained beyond that.

    Args:
        patience: Epochs without improvement.
        min_delta: What an epoch must be better by to count as one.
        grace: Epochs that every trial gets.

    >>> stopper = Patience(metric="loss", mode=Mode.MIN, epochs=9, patience=1)
    >>> stopper.added(0, {}, 0)
    1
    >>> stopper.evaluated(Report(0, 1, 4, {"loss": 0.5}))
    [Promote(trial=0, epochs=2)]
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
        #: Of live trials: the last epoch, the best score and its epoch, and where it waits.
        self._live: dict[int, tuple[int, float, int, int]] = {}

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        target = self._end_of_patience(epochs)
        self._live[trial] = (epochs, float("-inf"), epochs, target)
        return target

    def evaluated(self, report: Report) -> list[Decision]:
        trial, epochs = report.trial, report.epochs
        standing = self._live.get(trial)
        if standing is None or epochs <= standing[0]:
            return []
        _, best, since, target = standing
        score = self._scale.score(report.metrics)
        if score > best + self._min_delta:
            best, since = score, epochs
        is_due = target <= epochs < self._epochs
        if is_due:
            target = self._end_of_patience(since)
        self._live[trial] = (epochs, best, since, target)
        if not is_due:
            return []
        if target > epochs:
            return [Promote(trial, target)]
        best_epoch = f"{self._scale.show(best)} after epoch {since}"
        return [Stop(trial, f"no better for {epochs - since} epochs than {best_epoch}")]

    def _end_of_patience(self, since: int) -> int:
        """The epoch after which a trial is stopped that gets no better from now on."""
        return min(max(since + self._patience, self._grace), self._epochs)

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        self._live.pop(trial, None)
        return []

    def describe(self) -> dict[str, Json]:
        own: dict[str, Json] = {"patience": self._patience, "min_delta": self._min_delta}
        return {"name": "patience", **self._scale.describe(), **own, "grace": self._grace}
