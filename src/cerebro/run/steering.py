"""What people ask of a run while it is going on."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import cast

from cerebro.errors import UsageError
from cerebro.run.committer import Commit
from cerebro.run.history import RunHistory
from cerebro.run.orders import Orders, decision, halt_record
from cerebro.run.past import TrialHistory
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.unit import Record
from cerebro.search.goal import check_epochs
from cerebro.storage import Store, inbox
from cerebro.storage.inbox import Command, Refusal, Verb
from cerebro.types import Json, TrialStatus, trial_id

#: What the journal keeps of a command beside its id.
_KEPT = ("command", "trial", "params", "epochs", "is_warm", "by")

#: Commands after which a trial goes on from a checkpoint.
_OF_STATES = (Verb.PAUSE, Verb.UNPAUSE, Verb.EXTEND, Verb.CLONE)


@dataclass(frozen=True, slots=True)
class Rung:
    """Posted to the driver: somebody has sent a command."""


class Inbox:
    """Reads commands, and makes commits of them: first that it came, then what it leads to.

    One after another: what one leads to is durable before the next is judged, so that each is
    judged by what those before it have brought about.
    """

    def __init__(self, store: Store, spec: RunSpec, history: RunHistory, orders: Orders) -> None:
        self._store = store
        self._spec = spec
        self._history = history
        self._orders = orders
        #: Files of commands that are being journaled, by id.
        self._files: dict[str, str] = {}
        #: Commands that wait for their turn: those of a driver before, and those of files.
        self._queue: deque[Mapping[str, Json] | Command | Refusal] = deque()
        #: The id of the one whose last record is not durable yet.
        self._current: str | None = None
        self._verbs: dict[Verb, Callable[[Command], list[Commit]]] = {
            Verb.STOP: self._stop,
            Verb.PAUSE: self._pause,
            Verb.UNPAUSE: self._unpause,
            Verb.CLONE: self._clone,
            Verb.EXTEND: self._extend,
            Verb.ADD: self._add,
        }

    @property
    def has_more(self) -> bool:
        """Whether the next one may be taken at once."""
        return self._current is None and bool(self._queue)

    def take(self) -> list[Commit]:
        """The commits for the next command; none while the last one is not settled."""
        if self._current is not None:
            return []
        if not self._queue:
            self._look()
        if not self._queue:
            return []
        found = self._queue.popleft()
        if isinstance(found, Command | Refusal):
            self._current = found.id
            return self._carry_out(found)
        self._current = str(found["id"])
        return self._make_good(found)

    def settled(self, record: Record) -> None:
        """A record is durable: its command need not be kept."""
        is_last = record.get("command") == self._current
        if record["type"] == "command":
            is_last = record["id"] == self._current and record["refused"] is not None
            name = self._files.get(str(record["id"]))
            if name:
                inbox.remove(self._store, name)
        if is_last:
            self._current = None

    def _look(self) -> None:
        """Queue all that has come since."""
        for record in self._history.open_commands.values():
            # A driver before was cut off between a command and what it leads to.
            if str(record["id"]) not in self._files:
                self._files[str(record["id"])] = ""
                self._queue.append(record)
        for name, found in inbox.pending(self._store):
            if found.id in self._history.commands:
                inbox.remove(self._store, name)
            elif found.id not in self._files:
                self._files[found.id] = name
                self._queue.append(found)

    def _carry_out(self, found: Command | Refusal) -> list[Commit]:
        if isinstance(found, Refusal):
            return [Commit([_refused_file(found)])]
        try:
            commits = self._lead_to(found)
        except UsageError as error:
            return [Commit([_record(found, str(error))])]
        return [Commit([_record(found, None)]), *commits]

    def _make_good(self, record: Mapping[str, Json]) -> list[Commit]:
        """What a command leads to that was taken before; nothing if it is too late for it."""
        command = Command.from_json({key: record[key] for key in _KEPT}, str(record["id"]))
        try:
            return self._lead_to(command)
        except UsageError as error:
            empty = decision("pause", [], command.by, str(error))
            return [Commit([{**empty, "command": command.id}])]

    def _lead_to(self, command: Command) -> list[Commit]:
        """What a command leads to; the last record names it."""
        needs_states = command.command in _OF_STATES and command.is_warm
        if needs_states and self._spec.checkpoint is Checkpointing.OFF:
            raise UsageError(f"{command.command} needs checkpoints, but the run has none ('off').")
        *others, last = self._verbs[command.command](command)
        last.records[-1]["command"] = command.id
        return [*others, last]

    def _stop(self, command: Command) -> list[Commit]:
        if command.trial is None:
            return [Commit([halt_record("stopped by a command", command.by)])]
        trial = self._find(command, "stopped", is_final=False)
        reason = "stopped by a command"
        return [Commit([decision("stop", [trial.number], command.by, reason)])]

    def _pause(self, command: Command) -> list[Commit]:
        trial = self._find(command, "paused", is_final=False)
        if trial.is_held:
            raise UsageError(f"{trial_id(trial.number)} is paused already.")
        return [Commit([decision("pause", [trial.number], command.by, "paused by a command")])]

    def _unpause(self, command: Command) -> list[Commit]:
        trial = self._find(command, "unpaused", is_final=False)
        if trial.status is not TrialStatus.PAUSED:
            raise UsageError(
                f"only a trial that is paused can be unpaused, but {trial_id(trial.number)} is "
                f"{trial.status}."
            )
        return self._orders.unpause(trial.number, command.by)

    def _clone(self, command: Command) -> list[Commit]:
        trial = self._find(command, "cloned")
        unknown = sorted(set(command.params) - set(trial.params) - set(self._spec.space))
        if unknown:
            raise UsageError(
                f"params must be among {', '.join(trial.params)}, but got {', '.join(unknown)}."
            )
        params = {**trial.params, **command.params}
        if not command.is_warm:
            return [self._orders.add(params, command.by)]
        if not self._history.kept(trial) and (trial.visits or trial.status.is_final):
            raise UsageError(
                f"{trial_id(trial.number)} has no state to begin with: clone it cold (--cold)."
            )
        return [self._orders.clone(trial.number, params, command.by)]

    def _extend(self, command: Command) -> list[Commit]:
        epochs = cast(int, command.epochs)
        check_epochs(epochs, cast("int | None", self._spec.goal.get("max_epochs")), "epochs")
        if command.trial is None:
            found = [t for t in self._history.trials.values() if _can_go_on(t, epochs)]
            if not found:
                raise UsageError(f"no finished trial has fewer than {epochs} epochs behind it.")
        else:
            trial = self._find(command, "extended")
            if trial.status.is_failure or trial.is_dropped:
                why = "its checkpoints were dropped" if trial.is_dropped else str(trial.status)
                raise UsageError(f"{trial_id(trial.number)} cannot be trained on: {why}.")
            goal = len(trial.epochs)
            if not trial.status.is_final:
                goal = max(goal, trial.target or self._spec.epochs)
            if goal >= epochs:
                raise UsageError(
                    f"{trial_id(trial.number)} must be meant to have fewer than {epochs} epochs "
                    f"behind it, but it is {goal}."
                )
            found = [trial]
        return self._orders.promote({epochs: [trial.number for trial in found]}, command.by)

    def _add(self, command: Command) -> list[Commit]:
        known = [set(trial.params) for trial in self._history.trials.values()]
        if known and set(command.params) not in known:
            names = ", ".join(sorted(set.union(*known)))
            raise UsageError(
                f"a trial must have the params of the others ({names}), but got "
                f"{', '.join(sorted(command.params)) or 'none'}."
            )
        return [self._orders.add(command.params, command.by)]

    def _find(self, command: Command, verb: str, *, is_final: bool | None = None) -> TrialHistory:
        trial = self._history.trials.get(cast(int, command.trial))
        if trial is None:
            raise UsageError(f"there is no trial {command.trial}.")
        if is_final is False and trial.status.is_final:
            raise UsageError(
                f"{trial_id(trial.number)} cannot be {verb}: it is {trial.status} already."
            )
        return trial


def _can_go_on(trial: TrialHistory, epochs: int) -> bool:
    is_through = trial.status is TrialStatus.FINISHED and not trial.is_dropped
    return is_through and len(trial.epochs) < epochs


def _record(command: Command, refused: str | None) -> Record:
    body = command.to_json()
    kept: dict[str, Json] = {
        key: body[key] for key in ("command", "trial", "params", "epochs", "is_warm", "by")
    }
    return {"type": "command", "id": command.id, **kept, "refused": refused}


def _refused_file(found: Refusal) -> Record:
    return {
        "type": "command",
        "id": found.id,
        "command": None,
        "trial": None,
        "params": {},
        "epochs": None,
        "is_warm": True,
        "by": "unknown",
        "refused": found.reason,
    }
