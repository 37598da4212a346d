"""Between the journal and the conductor of the search.

The conductor hears of what is durable, in the order of the journal, and what it decides is carried
out by records of the journal. So a resumed run has its conductor hear the same again, and knows
which of its decisions were carried out before: those that have a record.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from cerebro.run.past import SEARCH
from cerebro.search.conductor import Action, Conductor, Propose
from cerebro.search.decision import Clone, Halt, Pause, Promote, Report, Stop
from cerebro.types import Json, Metrics, Params, TrialStatus

logger = logging.getLogger("cerebro.run")


class Direction:
    """What the search wants to be done and is not yet.

    Args:
        steps: Training visits in an epoch.
        is_gated: Trials may train only as far as they are promoted; else all, to the end.
    """

    def __init__(self, conductor: Conductor, *, steps: int, epochs: int, is_gated: bool) -> None:
        self._conductor = conductor
        self._steps = steps
        self._epochs = epochs
        self.is_gated = is_gated
        self._due: list[Action] = []
        #: What was to be done when the run was ended: some of it was on its way.
        self._overtaken: list[Action] = []
        self._is_halted = False
        #: Reports of visits that a stop of the run made durable before their time, by trial.
        self._early: dict[int, list[Report]] = {}

    def begin(self, records: Iterable[Mapping[str, Json]] = ()) -> None:
        """Start, or go on after these records."""
        self._plan(self._conductor.begin())
        for record in records:
            self._tick_off(record)
            self.hear(record)

    @property
    def proposed(self) -> list[Params]:
        """Params of the trials that are about to be made."""
        return [action.params for action in self._due if isinstance(action, Propose)]

    def take(self) -> list[Action]:
        """What is to be done now; whoever takes it journals it."""
        due, self._due = self._due, []
        return due

    def hear(self, record: Mapping[str, Json]) -> None:
        """A record is durable."""
        kind = record["type"]
        if kind == "trial":
            self._hear_trial(record)
        elif kind == "visit":
            self._hear_visit(record)
        elif kind == "epoch":
            self._hear_epoch(record)
        elif kind == "trial_end":
            status = TrialStatus(cast(str, record["status"]))
            self._plan(self._conductor.ended(cast(int, record["trial"]), status))
        elif kind == "decision":
            self._hear_decision(record)

    def _hear_trial(self, record: Mapping[str, Json]) -> None:
        number = cast(int, record["trial"])
        proposal = cast("int | None", record.get("proposal", number))
        if proposal is None and record.get("parent") is None:
            proposal = -1 - number
        epochs = cast(int, record.get("visits", 0)) // self._steps
        params = cast("dict[str, Json]", record["params"])
        repeat = cast(int, record.get("repeat", 0))
        target = cast(int, record.get("epochs") or 0)
        # A copy of one that a person has extended.
        is_further = target > self._epochs and record.get("command") is not None
        limit = target if is_further else None
        answer = self._conductor.added(number, params, epochs, proposal, repeat, limit)
        if self._is_halted and record.get("command") is None:
            # It was on its way when the run was ended.
            answer = self._conductor.ended(number, TrialStatus.STOPPED)
        self._plan(answer)
        if record.get("replaces") is not None:
            replaced = cast(int, record["replaces"])
            self._plan(self._conductor.ended(replaced, TrialStatus.STOPPED))

    def _hear_visit(self, record: Mapping[str, Json]) -> None:
        epoch = cast(int, record["epoch"])
        visits = epoch * self._steps + cast(int, record["step"]) + 1
        trials, members = [record.get("trial")], [record.get("sums")]
        if "stack" in record:
            trials = cast("list[Any]", record["trials"])
            members = cast("list[Any]", record["members"])
        diverged = cast("dict[str, str]", record.get("diverged") or {})
        if not record.get("at_stop"):
            self._catch_up(cast("list[int]", trials))
        for number, sums in zip(cast("list[int]", trials), members, strict=True):
            if str(number) in diverged:
                self._plan(self._conductor.ended(number, TrialStatus.DIVERGED))
            elif sums:
                pairs = cast("dict[str, list[float]]", sums)
                metrics = {f"train_{name}": total / rows for name, (total, rows) in pairs.items()}
                report = Report(number, epoch, visits, metrics)
                if record.get("at_stop"):
                    self._early.setdefault(number, []).append(report)
                else:
                    self._plan(self._conductor.visited(report))

    def _catch_up(self, trials: Sequence[int]) -> None:
        """Hear of earlier visits of an epoch when it would have been without a stop."""
        early = [report for number in trials for report in self._early.pop(number, ())]
        for report in sorted(early, key=lambda report: report.visits):
            self._plan(self._conductor.visited(report))

    def _hear_epoch(self, record: Mapping[str, Json]) -> None:
        epochs = cast(int, record["epoch"]) + 1
        trials, metrics = [record.get("trial")], [record["metrics"]]
        if "stack" in record:
            trials = cast("list[Any]", record["trials"])
            metrics = cast("list[Any]", record["metrics"])
        for number, found in zip(cast("list[int]", trials), metrics, strict=True):
            report = Report(number, epochs, epochs * self._steps, dict(cast("Metrics", found)))
            self._plan(self._conductor.evaluated(report))

    def _hear_decision(self, record: Mapping[str, Json]) -> None:
        what = record["what"]
        if what == "halt":
            self._overtaken += self._due
            self._due, self._is_halted = [], True
            self._plan(self._conductor.halted())
            return
        is_search = record.get("by") == SEARCH
        for number in cast("list[int]", record["trials"]):
            if what == "stop":
                self._plan(self._conductor.ended(number, TrialStatus.STOPPED))
            elif what == "pause" and not is_search:
                self._plan(self._conductor.paused(number))
            elif what == "promote" and not is_search:
                epochs = cast("int | None", record.get("epochs"))
                if epochs is None:
                    self._plan(self._conductor.resumed(number))
                else:
                    answer = self._conductor.extended(number, epochs)
                    # That it may go so far is decided already.
                    self._plan(
                        action for action in answer if _key(action)[:2] != ("promote", number)
                    )

    def _plan(self, actions: Iterable[Action]) -> None:
        for action in actions:
            # Without a gate every trial is on its way to the end.
            if self.is_gated or not isinstance(action, Promote) or action.epochs > self._epochs:
                self._due.append(action)

    # What was carried out before

    def _tick_off(self, record: Mapping[str, Json]) -> None:
        done = _carried_out(record)
        self._due = _without(self._due, done)
        self._overtaken = _without(self._overtaken, done)
        if done:
            logger.warning(
                "the search would not decide now as it did before (%s): it goes on from what was "
                "decided.",
                ", ".join(" ".join(map(str, key)) for key in done[:3]),
            )


def _without(actions: Sequence[Action], done: list[tuple[Json, ...]]) -> list[Action]:
    """Those that are not done yet; those that are go from `done`."""
    kept: list[Action] = []
    for action in actions:
        key = _key(action)
        if key in done:
            done.remove(key)
        else:
            kept.append(action)
    return kept


def _key(action: Action) -> tuple[Json, ...]:
    if isinstance(action, Propose):
        return "propose", action.proposal, action.repeat
    if isinstance(action, Clone):
        return "clone", action.trial
    if isinstance(action, Halt):
        return ("halt",)
    if isinstance(action, Promote):
        return "promote", action.trial, action.epochs
    return "stop" if isinstance(action, Stop) else "pause", action.trial


def _carried_out(record: Mapping[str, Json]) -> list[tuple[Json, ...]]:
    """The decisions of the search that a record carries out."""
    kind = record["type"]
    if kind == "trial":
        if record.get("replaces") is not None:
            return [("clone", record["replaces"])]
        proposal = record.get("proposal", record["trial"])
        return [] if proposal is None else [("propose", proposal, record.get("repeat", 0))]
    if kind != "decision" or record.get("by") != SEARCH:
        return []
    what = str(record["what"])
    if what == "halt":
        return [("halt",)]
    more = (record["epochs"],) if what == "promote" else ()
    return [(what, number, *more) for number in cast("list[int]", record["trials"])]


__all__ = ["SEARCH", "Action", "Clone", "Direction", "Halt", "Pause", "Promote", "Propose", "Stop"]
