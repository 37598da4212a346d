"""The median rule: a trial worse than half of the others at the same age is stopped."""

from __future__ import annotations

from bisect import insort

from cerebro.search.checks import check_whole
from cerebro.search.decision import Decision, Promote, Report, Stop
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.types import Json, Mode, Params, TrialStatus


class Median(Endless):
    """Stops a trial whose best so far is worse than the median of the others' running means.

    At epoch e, of those others that came to epoch e before it (as in Google's Vizier). After each
    epoch a trial waits for the verdict, so that none is trained beyond it.

    Args:
        grace: Epochs that every trial gets.
        min_trials: Others that must have come so far for a comparison.

    >>> median = Median(metric="loss", mode=Mode.MIN, epochs=9, min_trials=1)
    >>> median.added(0, {}, 0), median.added(1, {}, 0)
    (1, 1)
    >>> median.evaluated(Report(0, 1, 4, {"loss": 0.5}))
    [Promote(trial=0, epochs=2)]
    >>> median.evaluated(Report(1, 1, 4, {"loss": 0.7}))[0].reason
    'best loss 0.7 after epoch 1 is worse than the median loss 0.5 of 1 trials'
    """

    is_comparing = True

    def __init__(
        self, *, metric: str, mode: Mode, epochs: int, grace: int = 1, min_trials: int = 3
    ) -> None:
        self._scale = Scale(metric, mode)
        self._epochs = epochs
        self._grace = check_whole("grace", grace, 1)
        self._min_trials = check_whole("min_trials", min_trials, 1)
        #: Of live trials: the last epoch, the best, the sum and the number of scores.
        self._live: dict[int, tuple[int, float, float, int]] = {}
        #: Running means at each epoch, sorted.
        self._means: dict[int, list[float]] = {}

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        self._live[trial] = (epochs, float("-inf"), 0.0, 0)
        return max(self._grace, epochs + 1)

    def evaluated(self, report: Report) -> list[Decision]:
        standing = self._live.get(report.trial)
        if standing is None or report.epochs <= standing[0]:
            return []
        score = self._scale.score(report.metrics)
        best, total, count = max(standing[1], score), standing[2] + score, standing[3] + 1
        self._live[report.trial] = (report.epochs, best, total, count)
        means = self._means.setdefault(report.epochs, [])
        decisions = self._judge(report, best, means)
        insort(means, total / count)
        if decisions or not self._grace <= report.epochs < self._epochs:
            return decisions
        return [Promote(report.trial, report.epochs + 1)]

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        self._live.pop(trial, None)
        return []

    def describe(self) -> dict[str, Json]:
        own: dict[str, Json] = {"grace": self._grace, "min_trials": self._min_trials}
        return {"name": "median", **self._scale.describe(), **own}

    def _judge(self, report: Report, best: float, means: list[float]) -> list[Decision]:
        is_due = self._grace <= report.epochs < self._epochs and len(means) >= self._min_trials
        if not is_due:
            return []
        # The lower one of two in the middle: a mean of the two may not be a number.
        median = means[(len(means) - 1) // 2]
        if best >= median:
            return []
        return [
            Stop(
                report.trial,
                f"best {self._scale.show(best)} after epoch {report.epochs} is worse than the "
                f"median {self._scale.show(median)} of {len(means)} trials",
            )
        ]
