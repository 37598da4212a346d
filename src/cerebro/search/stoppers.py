"""Stoppers by name, and several at once."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from typing import cast

from cerebro.errors import UsageError
from cerebro.search.allowance import KEYS as ALLOWED_KEYS
from cerebro.search.allowance import allowance_of
from cerebro.search.asha import Asha
from cerebro.search.decision import Decision, Promote, Report
from cerebro.search.goal import Goal
from cerebro.search.halving import Halving, Hyperband
from cerebro.search.median import Median
from cerebro.search.patience import Patience
from cerebro.search.pbt import Pbt
from cerebro.search.space import Space
from cerebro.search.stopper import Endless, Stopper
from cerebro.search.wording import show, unknown
from cerebro.types import Json, Mode, Params, TrialStatus

#: name -> what makes it; sorted.
STOPPERS: Mapping[str, Callable[..., Stopper]] = {
    "asha": Asha,
    "endless": Endless,
    "goal": Goal,
    "halving": Halving,
    "hyperband": Hyperband,
    "median": Median,
    "patience": Patience,
    "pbt": Pbt,
}

#: Keys of a goal: what is to be reached, and what may be used for it.
GOAL_KEYS = ("metric", "target", "mode", "max_epochs", *ALLOWED_KEYS)
# Arguments that come from the run; the rest are the user's.
_OF_RUN = ("epochs", "num_trials", "seed", "space")


class Stoppers:
    """Several stoppers at once: a trial waits while any of them holds it, and ends if one ends it.

    A Promote has its effect once all of them let the trial go on that far.

    >>> both = Stoppers([Asha(metric="loss", mode=Mode.MIN, epochs=9), Endless()])
    >>> both.added(0, {}, 0)
    1
    """

    def __init__(self, stoppers: Sequence[Stopper]) -> None:
        if not stoppers:
            raise UsageError("several stoppers at once are at least one, but got none.")
        self._stoppers = tuple(stoppers)
        self.is_comparing = any(stopper.is_comparing for stopper in stoppers)
        counts = [getattr(stopper, "num_trials", None) for stopper in stoppers]
        #: Trials that one of them wants.
        self.num_trials: int | None = next((count for count in counts if count is not None), None)
        #: How far each of them lets a live trial go.
        self._targets: dict[int, list[float]] = {}

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        targets = [stopper.added(trial, params, epochs) for stopper in self._stoppers]
        self._targets[trial] = [math.inf if target is None else target for target in targets]
        least = min(self._targets[trial])
        return None if least == math.inf else int(least)

    def visited(self, report: Report) -> list[Decision]:
        return self._merged([stopper.visited(report) for stopper in self._stoppers])

    def evaluated(self, report: Report) -> list[Decision]:
        return self._merged([stopper.evaluated(report) for stopper in self._stoppers])

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        self._targets.pop(trial, None)
        return self._merged([stopper.ended(trial, status) for stopper in self._stoppers])

    def exhausted(self) -> list[Decision]:
        return self._merged([stopper.exhausted() for stopper in self._stoppers])

    def describe(self) -> dict[str, Json]:
        return {"name": "all", "stoppers": [stopper.describe() for stopper in self._stoppers]}

    def _merged(self, told: Sequence[Sequence[Decision]]) -> list[Decision]:
        merged: list[Decision] = []
        for index, decisions in enumerate(told):
            for decision in decisions:
                if not isinstance(decision, Promote):
                    merged.append(decision)
                    continue
                targets = self._targets.get(decision.trial)
                if targets is None:
                    continue
                before = min(targets)
                targets[index] = decision.epochs
                if min(targets) > before:
                    merged.append(Promote(decision.trial, int(min(targets))))
        return merged


def make_stopper(
    value: object,
    *,
    metric: str,
    mode: Mode,
    epochs: int,
    num_trials: int | None = None,
    seed: int = 0,
    space: Space | None = None,
) -> Stopper:
    """The stopper a user means: None, a name, a mapping with a name, a list of those, or one.

    >>> make_stopper({"name": "asha", "eta": 4}, metric="loss", mode="min", epochs=9).describe()
    {'name': 'asha', 'metric': 'loss', 'mode': 'min', 'eta': 4, 'grace': 1, 'brackets': 1, \
'kind': 'promote'}
    """
    context = {
        **{"metric": metric, "mode": Mode(mode), "epochs": epochs},
        **{"num_trials": num_trials, "seed": seed, "space": space},
    }
    return _make(value, context)


def make_goal(value: Mapping[str, object], *, metric: str, mode: Mode) -> Goal:
    """The goal a user means: `{"metric": ..., "target": ...}`, perhaps with others of its keys.

    What it allows (devices, max_nodes) is checked as far as it says something; whether the run
    keeps to it is not for the goal to know.

    >>> make_goal({"target": 0.97}, metric="val_accuracy", mode="max").describe()["metric"]
    'val_accuracy'
    """
    if not isinstance(value, Mapping):
        raise UsageError(
            f"a goal is a mapping with metric and target, as in {{metric: val_accuracy, target: "
            f"0.97}}, but got {show(value)}."
        )
    for key in value:
        if key not in (*GOAL_KEYS, "name"):
            raise UsageError(unknown("key of goal", str(key), GOAL_KEYS))
    allowance_of(value)
    own = {key: given for key, given in value.items() if key not in ALLOWED_KEYS}
    goal = _make({**own, "name": "goal"}, {"metric": metric, "mode": Mode(mode)})
    assert isinstance(goal, Goal)  # noqa: S101  # for mypy: the name says so
    found = goal.describe()
    if found["metric"] == metric and found["mode"] != Mode(mode):
        raise UsageError(
            f"a goal must go the way in which trials are ranked by its metric: {metric} has the "
            f"mode {Mode(mode).value}, but got {found['mode']}. Name another metric of the goal, "
            "or leave out its mode."
        )
    return goal


def _make(value: object, context: Mapping[str, object]) -> Stopper:
    if value is None:
        return Endless()
    if isinstance(value, str):
        return _make({"name": value}, context)
    if isinstance(value, list | tuple):
        return Stoppers([_make(each, context) for each in value])
    if not isinstance(value, Mapping):
        if isinstance(value, type) or not hasattr(value, "evaluated"):
            raise UsageError(
                f"a stopper is a name ({', '.join(STOPPERS)}), a mapping with a name, a list of "
                f"these, or a Stopper object, but got {show(value)}."
            )
        return cast(Stopper, value)
    options = dict(value)
    if options.get("name") is None:
        raise UsageError(
            f"a stopper as a mapping needs a name, one of {', '.join(STOPPERS)} and all, as in "
            f"{{name: asha, eta: 4}}, but got {show(value)}."
        )
    name = str(options.pop("name"))
    if name == "all":
        return Stoppers([_make(each, context) for each in _listed(options)])
    if name not in STOPPERS:
        raise UsageError(unknown("stopper", name, [*STOPPERS, "all"]))
    return _construct(name, options, context)


def _construct(name: str, options: dict[str, object], context: Mapping[str, object]) -> Stopper:
    factory = STOPPERS[name]
    accepted = inspect.signature(factory).parameters
    allowed = [each for each in accepted if each not in _OF_RUN]
    for option in options:
        if option not in allowed:
            raise UsageError(unknown(f"argument of stopper {name!r}", str(option), allowed))
    if "mode" in accepted:
        options = {**options, **_scale_of(name, options, context)}
    arguments = {each: context[each] for each in _OF_RUN if each in accepted} | options
    lacking = [
        each
        for each, parameter in accepted.items()
        if parameter.default is parameter.empty and each not in arguments
    ]
    if lacking:
        raise UsageError(f"stopper {name!r} needs {', '.join(lacking)}.")
    return factory(**arguments)


def _scale_of(
    name: str, options: Mapping[str, object], context: Mapping[str, object]
) -> dict[str, object]:
    """Metric and mode: the run's own, unless another metric is named, which needs its mode."""
    metric = options.get("metric", context["metric"])
    mode = options.get("mode")
    if not isinstance(metric, str):
        raise UsageError(f"`metric` must be a name, but got metric={show(metric)}.")
    if mode is None:
        if metric != context["metric"]:
            raise UsageError(
                f"stopper {name!r} goes by {metric!r}, not by the run's metric "
                f"{context['metric']!r}, and needs its mode: 'max' or 'min'."
            )
        mode = context["mode"]
    if mode not in (Mode.MAX, Mode.MIN):
        raise UsageError(f"`mode` must be 'max' or 'min', but got mode={show(mode)}.")
    return {"metric": metric, "mode": Mode(str(mode))}


def _listed(options: Mapping[str, object]) -> list[object]:
    stoppers = options.get("stoppers")
    if options.keys() != {"stoppers"} or not isinstance(stoppers, list):
        raise UsageError("stopper 'all' needs `stoppers`, a list, and nothing else.")
    return stoppers
