"""The rows of a result: trials, configurations, the leaderboard."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cerebro.track.notebook_html import framed, leaderboard_html
from cerebro.track.ranking import Ranking, leaderboard
from cerebro.track.standings import format_leaderboard
from cerebro.types import Metrics, Params, TrialStatus


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialResult:
    """One trial of a run. `metrics` are those of its best epoch."""

    id: str
    number: int
    params: Params
    status: TrialStatus
    metrics: Metrics
    #: The best epoch, counted from 0; None if none was finished.
    epoch: int | None
    error: str | None = None
    traceback: str | None = field(default=None, repr=False)
    #: Which repeat of its configuration it is, from 0; with folds, the one that was held out.
    repeat: int = 0
    #: The trial that it began as a copy of; epochs and train visits behind the copied state.
    parent: str | None = None
    parent_epochs: int = 0
    parent_visits: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigResult:
    """One configuration: with seeds or folds several trials, else one.

    `mean` and `std` (of a sample, None for a single value) are of the metric, over the best epochs
    of the trials that have one and did not fail; None if there is none. A configuration is complete
    if that is all of them, and feasible if the means of its metrics keep the constraints.
    """

    #: That of its first trial.
    id: str
    params: Params
    trials: tuple[TrialResult, ...]
    mean: float | None
    std: float | None
    is_complete: bool
    is_feasible: bool
    is_pareto: bool


class Leaderboard(list[dict[str, Any]]):
    """Rows from best to worst, as in leaderboard.csv; `pandas.DataFrame(rows)` takes them.

    Their keys: "rank" (None where a trial failed), "trial", "status", the metrics of the best
    epoch, "epoch" (the best, counted from 0), "epochs" (finished), "params.<name>", "error".
    With seeds or folds also "config", "repeat", and "mean" and "std" over the repeats, whose rank
    is that of the configuration; with constraints "feasible"; with several metrics "pareto"; where
    there are copies "parent" and "parent_epochs". Printed, it is a table for people: one line a
    configuration, epochs counted from 1.
    """

    def __init__(self, ranking: Ranking) -> None:
        super().__init__(leaderboard(ranking))
        self.ranking = ranking

    def __str__(self) -> str:
        return format_leaderboard(self.ranking)

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return framed(leaderboard_html(self.ranking))
