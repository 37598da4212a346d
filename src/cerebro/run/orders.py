"""What is decided, by the search or by a person, becomes records of the journal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from cerebro.run.checks import check_batch_size
from cerebro.run.committer import Commit, Copy
from cerebro.run.direction import SEARCH, Action, Clone, Halt, Pause, Promote, Propose
from cerebro.run.entry import is_under_way
from cerebro.run.history import Extract, RunHistory
from cerebro.run.past import TrialHistory
from cerebro.run.spec import RunSpec
from cerebro.run.unit import Record
from cerebro.types import Params, trial_id


class Orders:
    """Makes commits of decisions; they take effect when they are durable."""

    def __init__(self, spec: RunSpec, history: RunHistory) -> None:
        self._spec = spec
        self._history = history
        self._next = len(history.trials)
        #: Stacks that go on with a part of their trials as soon as that is durable.
        self._rejoining: set[int] = set()
        #: Trials that are taken out of theirs.
        self._departing: set[int] = set()

    def carry_out(self, actions: Sequence[Action]) -> list[Commit]:
        """The commits for what the search has decided, in order."""
        commits: list[Commit] = []
        promoted: dict[int, list[int]] = {}
        for action in actions:
            if isinstance(action, Promote):
                promoted.setdefault(action.epochs, []).append(action.trial)
                continue
            commits += self.promote(promoted, SEARCH)
            promoted = {}
            if isinstance(action, Propose):
                commits.append(self._propose(action))
            elif isinstance(action, Clone):
                reason = action.reason
                commits.append(
                    self.clone(action.source, action.params, SEARCH, action.trial, reason)
                )
            elif isinstance(action, Halt):
                commits.append(Commit([halt_record(action.reason, SEARCH)]))
            else:
                what = "pause" if isinstance(action, Pause) else "stop"
                commits.append(Commit([decision(what, [action.trial], SEARCH, action.reason)]))
        return [*commits, *self.promote(promoted, SEARCH)]

    def promote(self, trials: dict[int, list[int]], by: str) -> list[Commit]:
        """Let trials train until so many epochs are behind them."""
        commits: list[Commit] = []
        for epochs, numbers in trials.items():
            for number in self._leaving(numbers):
                commits.append(self.leave(self._history.trials[number]))
            commits.append(Commit([{**decision("promote", numbers, by), "epochs": epochs}]))
        return commits

    def unpause(self, number: int, by: str) -> list[Commit]:
        """Let a trial that was paused go on."""
        commits = [self.leave(self._history.trials[n]) for n in self._leaving([number])]
        return [*commits, Commit([decision("promote", [number], by)])]

    def leave(self, trial: TrialHistory) -> Commit:
        """Take a trial out of its stack."""
        refs = [ref for ref in self._history.kept(trial) if ref.is_stack]
        record: Record = {"type": "left", "trial": trial.number, "checkpoints": []}
        return Commit([record], extracts=[Extract(ref, (trial.number,)) for ref in refs])

    def clone(
        self,
        source: int,
        params: Params,
        by: str,
        replaces: int | None = None,
        reason: str | None = None,
    ) -> Commit:
        """A new trial with a copy of another's latest state."""
        parent = self._history.trials[source]
        refs = self._history.kept(parent)
        record = self._trial(params, parent.start, by)
        number = cast(int, record["trial"])
        visits, steps = refs[-1].visits if refs else 0, self._spec.train_shards
        record |= {"parent": source, "visits": visits, "proposal": None}
        if self._spec.is_gated:
            record["epochs"] = visits // steps
        if (parent.target or 0) > self._spec.epochs and by != SEARCH:
            record["epochs"] = parent.target  # it was extended: its copy goes as far
        elif visits > self._spec.epochs * steps:
            record["epochs"] = -(-visits // steps)  # the search grants no more: to the end of one
        if replaces is not None:
            record |= {"replaces": replaces, "reason": f"{reason}: {trial_id(number)}"}
        return Commit([record], copy=Copy(refs[-1], source, number) if refs else None)

    def add(self, params: Params, by: str) -> Commit:
        """A new trial from nothing."""
        return Commit([{**self._trial(params, None, by), "proposal": None}])

    def settled(self, record: Record) -> None:
        """A record is durable."""
        if record["type"] == "left":
            self._departing.discard(cast(int, record["trial"]))
        if record["type"] == "decision" and record["what"] == "promote":
            for number in cast("list[int]", record["trials"]):
                self._rejoining.discard(self._history.trials[number].stack or 0)

    def _propose(self, action: Propose) -> Commit:
        record = self._trial(action.params, None, None)
        record["proposal"] = action.proposal
        if action.repeat:
            record["repeat"] = action.repeat
        return Commit([record])

    def _trial(self, params: Params, start: int | None, by: str | None) -> Record:
        check_batch_size(self._spec, params)
        number, self._next = self._next, self._next + 1
        record: Record = {"type": "trial", "trial": number, "params": dict(params)}
        record["start"] = number % self._spec.train_shards if start is None else start
        if self._spec.is_gated:
            record["epochs"] = 0
        return record if by is None else {**record, "by": by}

    def _leaving(self, numbers: Sequence[int]) -> list[int]:
        """Those that can not go on within their stacks: it has moved on, or is about to.

        What all of them do together is one decision, so that it is carried out whole or not.
        """
        found: list[int] = []
        joined: set[int] = set()
        for trial in (self._history.trials[number] for number in numbers):
            if trial.stack is None or trial.number in self._departing or is_under_way(trial):
                continue
            stack = self._history.stacks[trial.stack]
            others = (self._history.trials[n] for n in stack.trials)
            is_busy = any(t.stack == stack.unit and is_under_way(t) for t in others)
            # What is kept of it may have been taken out of it.
            is_gone = stack.visits > 0 and not any(
                ref.visits == trial.visits for ref in stack.checkpoints
            )
            is_elsewhere = is_gone or stack.visits != trial.visits
            if is_busy or is_elsewhere or stack.unit in self._rejoining:
                found.append(trial.number)
            else:
                joined.add(stack.unit)
        self._rejoining |= joined
        self._departing |= set(found)
        return found


def decision(what: str, trials: Sequence[int], by: str, reason: str | None = None) -> Record:
    """The record of a decision about trials."""
    record: Record = {"type": "decision", "what": what, "trials": list(trials), "by": by}
    return record if reason is None else {**record, "reason": reason}


def halt_record(reason: str, by: str) -> Record:
    """The record of a decision that the run is over."""
    return {"type": "decision", "what": "halt", "by": by, "reason": reason}
