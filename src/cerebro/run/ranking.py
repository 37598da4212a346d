"""The trials of a run in order, and why a run ended before all of them were through."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from cerebro.run.direction import SEARCH
from cerebro.run.history import RunHistory
from cerebro.run.past import TrialHistory
from cerebro.search.decision import Halt, Report
from cerebro.search.goal import Goal
from cerebro.track.ranking import Criteria, Ranking, TrialRow, rank
from cerebro.track.text import clean, show, show_seconds
from cerebro.types import Json, Mode

#: Who ends a run when its time is up.
BUDGET = "budget"


def criteria_of(spec: Mapping[str, Json]) -> Criteria:
    """What the trials of a run are ranked by; `spec` is that of its run.json."""
    others = cast("list[list[str]]", spec.get("objectives") or [])
    folds = cast(int, spec.get("folds") or 0)
    return Criteria(
        metric=str(spec["metric"]),
        mode=Mode(str(spec["mode"])),
        others=tuple((name, Mode(mode)) for name, mode in others),
        constraints=cast("dict[str, float]", spec.get("constraints") or {}),
        repeats=max(cast(int, spec.get("seeds") or 1), folds),
        is_folded=folds > 0,
    )


def rank_trials(history: RunHistory, criteria: Criteria | None = None) -> Ranking:
    """All trials, best first; by the run's metric alone where no criteria are given."""
    if criteria is None:
        criteria = Criteria(metric=history.metric, mode=history.mode)
    return rank((row_of(trial, history) for trial in history.trials.values()), criteria)


def row_of(trial: TrialHistory, history: RunHistory) -> TrialRow:
    """A trial as tables show it."""
    best = trial.best_epoch(history.metric, history.mode)
    metrics = {} if best is None else trial.epochs[best].metrics
    value = metrics.get(history.metric, math.nan)
    return TrialRow(
        trial=trial.number,
        params=trial.params,
        status=trial.status,
        epochs=len(trial.epochs),
        metric=value if math.isfinite(value) else None,
        best_epoch=best,
        metrics=metrics,
        error=trial.error,
        proposal=trial.proposal,
        repeat=trial.repeat,
        parent=trial.parent,
        parent_epochs=trial.parent_visits // history.steps,
        is_held=trial.is_held,
    )


def beyond(ranking: Ranking, keep: int) -> list[int]:
    """The trials of all but so many best configurations, and all on the Pareto front."""
    others = [config for config in ranking.configs[keep:] if not config.is_on_front]
    return [row.trial for config in others for row in config.rows]


def is_person(by: object) -> bool:
    """Whether a decision was a person's."""
    return by not in (None, SEARCH, BUDGET)


class Ending(NamedTuple):
    """Why a run ended before its trials did, or what none of them reached, and after how long.

    Attributes:
        after_s: Seconds that all its drivers had worked.

    >>> print(Ending("t0003 reached val_accuracy 0.9712 >= 0.97 in epoch 4", "search", True, 41.3))
    goal reached: t0003 reached val_accuracy 0.9712 >= 0.97 in epoch 4, after 41 s
    >>> print(Ending("stopped by a command", "ada", False, 200.0))
    ended early: stopped by a command (ada), after 3 min 20 s
    >>> print(Ending("no trial has val_accuracy >= 0.97", "search", False, 41.3, is_missed=True))
    goal not reached: no trial has val_accuracy >= 0.97, after 41 s
    """

    reason: str
    by: str
    is_goal: bool
    after_s: float
    is_missed: bool = False

    def __str__(self) -> str:
        what = "goal reached" if self.is_goal else "ended early"
        what = "goal not reached" if self.is_missed else what
        who = f" ({clean(self.by, 40)})" if is_person(self.by) else ""
        after = f"{self.after_s:.1f} s" if self.after_s < 10 else show_seconds(self.after_s)
        return f"{what}: {clean(self.reason, 300)}{who}, after {after}"


def aim_of(goal: Mapping[str, Any]) -> str:
    """What a goal is, as in `val_accuracy >= 0.97`."""
    sign = ">=" if goal["mode"] == "max" else "<="
    return f"{clean(goal['metric'], 40)} {sign} {show(goal['target'])}"


def ending_of(
    history: RunHistory, spec: Mapping[str, Any], *, is_over: bool = False
) -> Ending | None:
    """Why the run was ended, or which goal it missed; None where it simply came to its end.

    Args:
        history: What has happened.
        spec: Of its run.json.
        is_over: It has come to its end, though its journal does not say so yet.
    """
    goal = spec.get("goal") or {}
    has_ended = history.halted is not None or (is_over or history.is_finished)
    reached = _reached(goal, history) if goal and has_ended else None
    if reached is not None:
        # Perhaps the run went on after that, or was killed before it could end.
        reason, after_s = reached
        return Ending(reason, SEARCH, True, after_s)
    if history.halted is not None:
        return Ending(history.halted, history.halted_by, False, history.halted_s)
    if not goal or not has_ended:
        return None
    spent_s = history.spent_s + history.driver_s
    return Ending(f"no trial has {aim_of(goal)}", SEARCH, False, spent_s, is_missed=True)


def _reached(goal: Mapping[str, Any], history: RunHistory) -> tuple[str, float] | None:
    """How a trial had the goal, and after how many seconds."""
    if history.reached is not None and _is_reached(goal, history.reached):
        return history.reached, history.reached_s
    # Nobody looks for it in trials that a person lets go on after the run was ended.
    wanted = Goal(goal["metric"], goal["target"], mode=Mode(goal["mode"]))
    found = [
        (epoch.after_s, halt.reason)
        for trial in history.trials.values()
        for number, epoch in enumerate(trial.epochs, 1)
        for halt in wanted.evaluated(Report(trial.number, number, epoch.visits, epoch.metrics))
        if isinstance(halt, Halt)
    ]
    if not found:
        return None
    after_s, reason = min(found)
    return reason, after_s


def _is_reached(goal: Mapping[str, Any], reason: str) -> bool:
    """Whether a reason to end the run is that it had this goal."""
    if not goal:
        return False
    words = f" reached {goal['metric']} ", f" {goal['target']:.6g} in epoch "
    return all(word in reason for word in words)
