"""Steering a run while it goes on, from any process: stop, pause, clone, extend and add trials."""

from __future__ import annotations

import enum
import math
import os
import socket
import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import cast

import psutil

from cerebro.errors import UsageError
from cerebro.run.history import RunHistory, TrialHistory
from cerebro.run.recovery import load_history
from cerebro.search.domain import Constant, plain
from cerebro.search.goal import check_epochs
from cerebro.search.space import Space, parse_space
from cerebro.search.wording import show, unknown
from cerebro.storage import Store, layout, open_store
from cerebro.storage.inbox import Command, Verb, send
from cerebro.storage.lock import Holder, read_holder
from cerebro.storage.tail import Tail
from cerebro.types import Json, Params, TrialStatus, trial_id

WAIT_S = 10.0

_LOOK_S = 0.05
#: The lock's time is cut to whole seconds.
_CLOCK_S = 2.0
#: A lease that was not renewed for so long: clocks of two machines are not so far apart.
_SILENT_S = 120.0
_SENT = "sent; the run will apply it at its next visit boundary"
_UNHEARD = (
    "nobody works on this run: it will be applied when `cerebro run` (run_fit) goes on with it"
)


class AnswerState(enum.StrEnum):
    """What became of a command."""

    APPLIED = "applied"
    REFUSED = "refused"
    #: The run has it, and has not answered yet.
    WAITING = "waiting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a run made of a command."""

    #: Of the command, as in the journal.
    id: str
    state: AnswerState
    #: Why it was refused, or what it waits for.
    reason: str | None = None
    #: The number of the new trial, of `clone` and `add`; None as long as there is none.
    trial: int | None = None


class Steering:
    """Commands for the run in a directory, whoever drives it.

    A command is a file in the run's inbox. The driver takes it at the next visit boundary, writes
    it to the journal and carries it out; without a driver it waits for the next one. So several
    people may steer at once, and a run that is resumed has not forgotten anything.

    Trials are named by number or id (`3`, `"t0003"`). Each method checks what it is given against
    the journal (`UsageError`), sends the command and waits up to `wait_s` seconds for the answer.

    >>> import tempfile, numpy as np, cerebro
    >>> from cerebro.testing.toy import ToyTask
    >>> folder = tempfile.mkdtemp()
    >>> x = np.random.default_rng(0).normal(size=(64, 4)).astype("float32")
    >>> _ = cerebro.data.from_arrays(
    ...     f"{folder}/data", train={"x": x, "y": (x[:, 0] > 0) + 0}, shards=2, validation=0.2
    ... )
    >>> exp = cerebro.Experiment(
    ...     name="toy", data=f"{folder}/data", store=f"{folder}/runs", backend="inline", workers=1
    ... )
    >>> result = exp.run_fit(
    ...     ToyTask(), {"lr": [0.5]}, num_epochs=1, batch_size=8, metric="val_loss", mode="min"
    ... )
    >>> steering = cerebro.Steering(f"{folder}/runs/toy")
    >>> answer = steering.clone(0, {"lr": 0.1})
    >>> answer.state
    <AnswerState.WAITING: 'waiting'>
    >>> print(answer.reason)
    nobody works on this run: it will be applied when `cerebro run` (run_fit) goes on with it
    >>> steering.stop("t0000")
    Traceback (most recent call last):
    cerebro.errors.UsageError: only an unfinished trial can be stopped, but t0000 is finished.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._store = open_store(path)
        if not self._store.exists(layout.RUN):
            raise UsageError(
                f"a run directory must have a {layout.RUN}, but {os.fspath(path)} has none."
            )

    def stop(self, trial: str | int | None = None, *, wait_s: float = WAIT_S) -> Answer:
        """End a trial; it keeps what it has learnt. Without one, end the run.

        All trials that are not through are then stopped.
        """
        _, history = load_history(self._store)
        if trial is None:
            if history.is_finished:
                raise UsageError("only an unfinished run can be stopped, but this one is finished.")
            return self._send(Command(command=Verb.STOP), wait_s)
        found = _find(history, trial)
        if found.status.is_final:
            raise UsageError(
                "only an unfinished trial can be stopped, but "
                f"{trial_id(found.number)} is {found.status}."
            )
        return self._send(Command(command=Verb.STOP, trial=found.number), wait_s)

    def pause(self, trial: str | int, *, wait_s: float = WAIT_S) -> Answer:
        """Let a trial wait after the visit it is in, until `unpause`."""
        _, history = load_history(self._store)
        found = _find(history, trial)
        if found.status.is_final or found.is_held:
            raise UsageError(
                "only an unfinished trial can be paused, and once, but "
                f"{trial_id(found.number)} is {found.status}."
            )
        return self._send(Command(command=Verb.PAUSE, trial=found.number), wait_s)

    def unpause(self, trial: str | int, *, wait_s: float = WAIT_S) -> Answer:
        """Let a paused trial go on, also one that waits to be promoted by the search."""
        _, history = load_history(self._store)
        found = _find(history, trial)
        if found.status is not TrialStatus.PAUSED:
            raise UsageError(
                f"only a paused trial can go on, but {trial_id(found.number)} is {found.status}."
            )
        return self._send(Command(command=Verb.UNPAUSE, trial=found.number), wait_s)

    def clone(
        self,
        trial: str | int,
        params: Params | None = None,
        *,
        warm: bool = True,
        wait_s: float = WAIT_S,
    ) -> Answer:
        """Start a new trial with the params of another, but for those given.

        Args:
            warm: Go on with the other's state and epochs, as far as it was meant to go; else begin
                anew.
        """
        space, history = self._load()
        found = _find(history, trial)
        changes = _check_params(params or {}, {**found.params, **dict.fromkeys(space)})
        command = Command(command=Verb.CLONE, trial=found.number, params=changes, is_warm=warm)
        return self._send(command, wait_s)

    def extend(
        self, trial: str | int | None = None, *, epochs: int, wait_s: float = WAIT_S
    ) -> Answer:
        """Train a trial until so many epochs are behind it; without one, all that are finished."""
        document, history = load_history(self._store)
        found = None if trial is None else _find(history, trial)
        number = None if found is None else found.number
        command = Command(command=Verb.EXTEND, trial=number, epochs=epochs)
        goal = cast("dict[str, Json]", document.spec.get("goal") or {})
        check_epochs(epochs, cast("int | None", goal.get("max_epochs")), "epochs")
        if found is not None:
            _check_extension(found, epochs, history.epochs)
        elif not any(
            each.status is TrialStatus.FINISHED and len(each.epochs) < epochs
            for each in history.trials.values()
        ):
            raise UsageError(
                f"there must be finished trials with fewer than {epochs} epochs behind them, but "
                "there are none: give more epochs, or a trial."
            )
        return self._send(command, wait_s)

    def add(self, params: Params, *, wait_s: float = WAIT_S) -> Answer:
        """Start a new trial with these params; those that are constant in the space may lack.

        Values need not lie in the space.
        """
        space, _ = self._load()
        given = _check_params(params, space)
        constants = {name: each.value for name, each in space.items() if isinstance(each, Constant)}
        if missing := [name for name in space if name not in {**constants, **given}]:
            raise UsageError(
                f"a new trial needs a value for each of {', '.join(space)}, but "
                f"{', '.join(missing)} has none: give it."
            )
        whole = {**constants, **given}
        command = Command(command=Verb.ADD, params={name: whole[name] for name in space})
        return self._send(command, wait_s)

    def _load(self) -> tuple[Space, RunHistory]:
        document, history = load_history(self._store)
        return parse_space(cast("dict[str, Json]", document.spec["space"])), history

    def _send(self, command: Command, wait_s: float) -> Answer:
        if not 0 <= wait_s < math.inf:
            raise UsageError(f"`wait_s` must be a number of seconds from 0 on, but got {wait_s}.")
        tail = Tail(self._store)
        send(self._store, command)
        try:
            return self._wait(command, tail, time.monotonic() + wait_s)
        finally:
            self._store.close()

    def _wait(self, command: Command, tail: Tail, deadline: float) -> Answer:
        answer: Answer | None = None
        while True:
            is_driven = find_driver(self._store) is not None
            # After looking for the driver: what it wrote before it went is seen.
            for record in tail.records():
                answer = _read_answer(record, command, answer)
            if answer is not None and not _is_expecting(answer, command):
                return answer
            if not is_driven or time.monotonic() >= deadline:
                break
            time.sleep(_LOOK_S)
        reason = _SENT if is_driven else _UNHEARD
        return answer or Answer(id=command.id, state=AnswerState.WAITING, reason=reason)


def find_driver(store: Store) -> Holder | None:
    """Who writes the run now. A driver on another host cannot be checked and counts as alive."""
    holder = read_holder(store)
    if holder is None or _is_silent(holder):
        return None
    if holder.host != socket.gethostname():
        return holder
    try:
        began_s = psutil.Process(holder.pid).create_time()
        taken_s = datetime.fromisoformat(holder.started).timestamp()
    except (psutil.Error, ValueError, TypeError):
        return None
    # A later process may have got the number of a dead driver.
    return holder if began_s <= taken_s + _CLOCK_S else None


def _is_silent(holder: Holder) -> bool:
    """Whether the lease of a driver has run out long ago, as far as two clocks can tell."""
    if holder.renewed is None:
        return False
    try:
        age = datetime.now(UTC) - datetime.fromisoformat(holder.renewed)
    except (ValueError, TypeError):
        return True
    return age.total_seconds() > _SILENT_S


def _read_answer(
    record: Mapping[str, Json], command: Command, answer: Answer | None
) -> Answer | None:
    """What a record of the journal adds to the answer."""
    if record.get("type") == "command" and record.get("id") == command.id:
        reason = cast("str | None", record.get("refused"))
        state = AnswerState.APPLIED if reason is None else AnswerState.REFUSED
        return Answer(id=command.id, state=state, reason=reason)
    if record.get("type") == "trial" and record.get("command") == command.id:
        number = cast(int, record["trial"])
        return Answer(id=command.id, state=AnswerState.APPLIED, trial=number)
    return answer


def _is_expecting(answer: Answer, command: Command) -> bool:
    """Whether the record of a new trial is still to come."""
    makes_trial = command.command in (Verb.CLONE, Verb.ADD)
    return makes_trial and answer.state is AnswerState.APPLIED and answer.trial is None


def _find(history: RunHistory, trial: str | int) -> TrialHistory:
    for found in history.trials.values():
        if trial in (found.number, str(found.number), trial_id(found.number)):
            return found
    names = ", ".join(trial_id(number) for number in list(history.trials)[:20])
    raise UsageError(f"unknown trial {show(trial)}. Known: {names or 'none yet'}.")


def _check_params(params: Params, known: Mapping[str, object]) -> dict[str, Json]:
    """The params as plain values; their names must be known."""
    if not isinstance(params, Mapping):
        raise UsageError(f"params must be a dict from names to values, but got {show(params)}.")
    checked: dict[str, Json] = {}
    for name, value in params.items():
        if name not in known:
            raise UsageError(unknown("parameter", str(name), known))
        checked[name] = plain(value)
    size = checked.get("batch_size", 1)
    if type(size) is not int or size < 1:
        raise UsageError(f"batch_size must be an integer of at least 1, but got {show(size)}.")
    return checked


def _check_extension(trial: TrialHistory, epochs: int, of_run: int) -> None:
    name = trial_id(trial.number)
    if trial.status.is_failure:
        raise UsageError(
            f"only a trial that went well can be trained longer, but {name} is {trial.status}."
        )
    if epochs <= len(trial.epochs):
        raise UsageError(
            f"`epochs` must be more than the {len(trial.epochs)} behind {name}, but got {epochs}."
        )
    goal = trial.target or of_run
    if trial.status in (TrialStatus.PENDING, TrialStatus.RUNNING) and epochs <= goal:
        raise UsageError(
            f"`epochs` must be more than the {goal} that {name} is trained for, but got {epochs}."
        )


__all__ = ["Answer", "AnswerState", "Steering"]
