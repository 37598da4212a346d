"""What a run's journal says: a pure fold of its records.

The driver applies each record once it is durable, and a resumed driver applies them all again, so
both hold the same history by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cerebro.errors import JournalCorruptError
from cerebro.run.aggregation import batches_of
from cerebro.run.past import SEARCH, Epoch, StackHistory, TrialHistory
from cerebro.run.retention import KEPT, Extract, Trials, by_visits
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.types import Json, Metrics, Mode, TrialStatus, stack_unit

__all__ = [
    "KEPT",
    "Epoch",
    "Extract",
    "Record",
    "RunHistory",
    "StackHistory",
    "TrialHistory",
]

Record = Mapping[str, Json]

#: Records of trials that often come for all members of a stack at once.
_TOGETHER = frozenset({"epoch", "trial_end", "dropped", "decision"})


@dataclass(slots=True)
class RunHistory(Trials):
    """A run, as far as it is durable."""

    #: How many drivers have worked on the run.
    drivers: int = 0
    is_finished: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    #: Why the whole run ended before its trials did, who said so, and after how many seconds.
    halted: str | None = None
    halted_by: str = ""
    halted_s: float = 0.0
    #: The last such reason of the search itself, which stays when the run goes on after it.
    reached: str | None = None
    reached_s: float = 0.0
    #: Commands that were taken or refused, by id; those whose effect is not there yet.
    commands: set[str] = field(default_factory=set)
    open_commands: dict[str, Record] = field(default_factory=dict)
    #: Seconds from a driver's start to the end of its last visit, of training or evaluation: all
    #: drivers before, this one.
    spent_s: float = 0.0
    driver_s: float = 0.0
    #: Records applied.
    _count: int = field(default=0, compare=False, repr=False)

    @classmethod
    def replay(
        cls, records: Iterable[Record], *, steps: int, epochs: int, metric: str, mode: Mode
    ) -> RunHistory:
        """The history that these records make; the arguments are what it ends with."""
        numbered = list(enumerate(records, 1))
        history = cls(steps, epochs, metric, mode)
        # Back to what it began with.
        for number, record in reversed(numbered):
            if record.get("type") == "forced":
                with _blaming(number, record):
                    history._apply_change(str(record["field"]), record["old"])
        for number, record in numbered:
            with _blaming(number, record):
                history._fold(record)
        history._settle()
        return history

    def apply(self, *records: Record) -> list[CheckpointRef]:
        """Take durable records into account; gives the checkpoints they make superfluous."""
        self._superfluous = []
        for record in records:
            self._fold(record)
        self._settle()
        return self._superfluous

    @property
    def has_trained(self) -> bool:
        """Whether any visit is durable."""
        return any(trial.visits for trial in self.trials.values())

    def _fold(self, record: Record) -> None:
        kind = str(record["type"])
        self._count += 1
        if kind not in _TOGETHER and self._touched:
            self._settle()
        apply = _OF_RUN.get(kind)
        if apply is not None:
            apply(self, record)
            if kind != "command":
                self.open_commands.pop(str(record.get("command")), None)
        elif "stack" in record:
            stack = self.stacks[stack_unit(cast(int, record["stack"]))]
            members = [n for n in stack.trials if self.trials[n].stack == stack.unit]
            self._apply_stack(kind, stack, record)
            self._touched[stack.unit] = None
            for number in members:
                self.trials[number].touched = self._count
        else:
            self._apply_trial(kind, self.trials[cast(int, record["trial"])], record)
            self._touch(self.trials[cast(int, record["trial"])])

    def _touch(self, trial: TrialHistory) -> None:
        trial.touched = self._count
        self._touched[trial.number if trial.stack is None else trial.stack] = None

    # The run

    def _begin_driver(self, record: Record) -> None:
        self.drivers += 1
        self.is_finished, self.halted = False, None
        self.spent_s += self.driver_s
        self.driver_s = 0.0

    def _finish(self, record: Record) -> None:
        self.is_finished = True
        self.summary = dict(cast("dict[str, Any]", record.get("summary") or {}))

    def _force(self, record: Record) -> None:
        self._apply_change(str(record["field"]), record["new"])

    def _apply_change(self, field: str, value: Json) -> None:
        """From now on the best is another; checkpoints of the best until now may go, or be gone."""
        if field == "metric":
            self.metric = str(value)
        elif field == "mode":
            self.mode = Mode(str(value))
        elif field == "epochs":
            self.epochs = cast(int, value)

    def _add_trial(self, record: Record) -> None:
        number = cast(int, record["trial"])
        params = cast("dict[str, Json]", record["params"])
        trial = TrialHistory(number, params, cast(int, record["start"]), touched=self._count)
        trial.target = cast("int | None", record.get("epochs"))
        # Of a version in which every trial was a proposal.
        trial.proposal = cast("int | None", record.get("proposal", number))
        trial.repeat = cast(int, record.get("repeat", 0))
        self.trials[number] = trial
        if record.get("parent") is not None:
            parent = self.trials[cast(int, record["parent"])]
            trial.inherit(parent, cast(int, record.get("visits", 0)))
            if record.get("checkpoint") is not None:
                trial.checkpoints.append(CheckpointRef.from_json(record["checkpoint"]))
        if trial.waits(self.epochs):
            trial.status = TrialStatus.PAUSED
        if self.halted is not None and record.get("command") is None:
            # It was on its way when the run was ended.
            trial.end(TrialStatus.STOPPED, self.halted, None)
        if record.get("replaces") is not None:
            replaced = self.trials[cast(int, record["replaces"])]
            self._stop(replaced, cast("str | None", record.get("reason")))

    def _decide(self, record: Record) -> None:
        what, reason = str(record["what"]), cast("str | None", record.get("reason"))
        by = str(record.get("by", SEARCH))
        if what == "halt":
            self.halted, self.halted_by = reason, str(record.get("by"))
            self.halted_s = self.spent_s + self.driver_s
            if by == SEARCH:
                self.reached, self.reached_s = reason, self.halted_s
            for trial in self.trials.values():
                self._stop(trial, reason)
            return
        for trial in (self.trials[number] for number in cast("list[int]", record["trials"])):
            if what == "stop":
                self._stop(trial, reason)
            elif what == "pause":
                trial.hold(by)
            elif what == "promote":
                trial.go_on(cast("int | None", record.get("epochs")), self.epochs, by)
            self._touch(trial)

    def _stop(self, trial: TrialHistory, reason: str | None) -> None:
        if not trial.status.is_final:
            trial.end(TrialStatus.STOPPED, reason, None)
            self._touch(trial)

    def _note_command(self, record: Record) -> None:
        self.commands.add(str(record["id"]))
        if record["refused"] is None:
            self.open_commands[str(record["id"])] = record

    # Trials

    def _apply_trial(self, kind: str, trial: TrialHistory, record: Record) -> None:
        if kind == "visit":
            visit = self._visit_of(record, trial.visits, f"trial {trial.number}")
            batches = batches_of(record.get("batches"))
            sums = cast("dict[str, Any]", record["sums"])
            trial.train(visit, sums, self.steps, batches, **_saving(record))
            if record.get("checkpoint") is not None:
                trial.checkpoints.append(CheckpointRef.from_json(record["checkpoint"]))
        elif kind == "epoch":
            self._evaluate(trial, cast("Metrics", record["metrics"]), record)
        elif kind == "left":
            self._leave(trial, record)
        elif kind == "micro_batch":
            trial.micro_batch = cast(int, record["rows"])
        elif kind == "trial_end":
            error, traceback = record.get("error"), record.get("traceback")
            status = TrialStatus(cast(str, record["status"]))
            is_short = len(trial.epochs) < (trial.target or self.epochs)
            is_early = status is TrialStatus.FINISHED and trial.is_held and is_short
            if trial.status is TrialStatus.STOPPED or is_early:
                # It was told so while the last visit was on its way.
                return
            trial.end(status, cast("str | None", error), cast("str | None", traceback))
        elif kind == "dropped":
            trial.is_dropped = True
        elif kind == "rollback":
            trial.roll_back(cast(int, record["visits"]), self.epochs)
        else:
            raise ValueError(f"unknown record type {kind!r}")

    def _evaluate(self, trial: TrialHistory, metrics: Metrics, record: Record) -> None:
        seconds = cast(float, record.get("seconds", 0.0))
        self._spend(record)
        visits = (cast(int, record["epoch"]) + 1) * self.steps
        after_s = self.spent_s + self.driver_s
        trial.evaluate(Epoch(dict(metrics), visits, seconds, after_s), self.epochs)

    def _visit_of(self, record: Record, visits: int, whose: str) -> int:
        visit = cast(int, record["epoch"]) * self.steps + cast(int, record["step"])
        if visit != visits:
            raise ValueError(f"visit {visit} of {whose} follows {visits}")
        self._spend(record)
        return visit

    def _spend(self, record: Record) -> None:
        """Epochs of old journals do not say when they ended."""
        self.driver_s = max(self.driver_s, cast(float, record.get("end_s", 0.0)))

    # Stacks

    def _compose(self, record: Record) -> None:
        for number in cast("list[int]", record["trials"]):
            self.trials[number].is_placed = True
        for value in cast("list[dict[str, Json]]", record["stacks"]):
            unit = stack_unit(cast("list[int]", value["trials"])[0])
            stack = self.stacks[unit] = StackHistory.from_json(unit, value)
            for number in stack.trials:
                self.trials[number].stack = unit
                self.trials[number].start = stack.start

    def _apply_stack(self, kind: str, stack: StackHistory, record: Record) -> None:
        if kind == "visit":
            self._apply_stack_visit(stack, record)
        elif kind == "epoch":
            members = cast("list[Metrics]", record["metrics"])
            visits = (cast(int, record["epoch"]) + 1) * self.steps
            for number, metrics in zip(cast("list[int]", record["trials"]), members, strict=True):
                # Whoever was told to wait while the others went on has fewer.
                if self.trials[number].visits == visits:
                    self._evaluate(self.trials[number], metrics, record)
        elif kind == "rollback":
            visits = cast(int, record["visits"])
            stack.roll_back(visits)
            # Those that ended before are no part of that state.
            for trial in (self.trials[number] for number in stack.trials):
                if trial.stack == stack.unit and trial.visits >= visits:
                    trial.roll_back(visits, self.epochs)
        elif kind == "taken":
            self._take_out(record)
            gone = [ref for ref in stack.checkpoints if ref.name == record["name"]]
            stack.checkpoints = [ref for ref in stack.checkpoints if ref not in gone]
            self._superfluous += gone
        elif kind == "dissolved":
            self._take_out(record)
            self._dissolve(stack, cast(int, record["visits"]))
        else:
            raise ValueError(f"unknown record type {kind!r}")

    def _apply_stack_visit(self, stack: StackHistory, record: Record) -> None:
        visit = self._visit_of(record, stack.visits, "the stack")
        trials = tuple(cast("list[int]", record["trials"]))
        members = cast("list[dict[str, Any]]", record["members"])
        diverged = cast("dict[str, str]", record.get("diverged") or {})
        stack.train(visit, trials, record.get("checkpoint"))
        for number, sums in zip(trials, members, strict=True):
            trial = self.trials[number]
            is_under_way = trial.status in (TrialStatus.PENDING, TrialStatus.RUNNING)
            # Others were in it when it began, and have ended, wait or go on alone since.
            if not is_under_way or (trial.stack, trial.visits) != (stack.unit, visit):
                continue
            if str(number) in diverged:
                trial.end(TrialStatus.DIVERGED, diverged[str(number)], None)
            else:
                trial.train(visit, sums, self.steps, None, **_saving(record))

    def _take_out(self, record: Record) -> None:
        """Members have checkpoints of their own now."""
        for value in cast("list[Json]", record["checkpoints"]):
            ref = CheckpointRef.from_json(value)
            trial = self.trials[ref.unit]
            trial.checkpoints = sorted([*trial.checkpoints, ref], key=by_visits)

    def _leave(self, trial: TrialHistory, record: Record) -> None:
        """It goes on alone, whatever becomes of its stack."""
        if trial.stack is not None:
            self._touched[trial.stack] = None
        trial.stack = None
        self._take_out(record)

    def _dissolve(self, stack: StackHistory, visits: int) -> None:
        self._superfluous += stack.checkpoints
        stack.checkpoints, stack.is_dissolved = [], True
        for trial in (self.trials[number] for number in stack.trials):
            if trial.stack != stack.unit:
                continue
            trial.stack = None
            is_under_way = trial.status in (TrialStatus.PENDING, TrialStatus.RUNNING)
            if is_under_way and trial.visits != visits:
                trial.roll_back(visits, self.epochs)


#: Records that are about the run, or about several trials.
_OF_RUN: Mapping[str, Callable[[RunHistory, Record], None]] = {
    "driver": RunHistory._begin_driver,
    "trial": RunHistory._add_trial,
    "done": RunHistory._finish,
    "forced": RunHistory._force,
    "stacks": RunHistory._compose,
    "decision": RunHistory._decide,
    "command": RunHistory._note_command,
}


def _saving(record: Record) -> dict[str, bool]:
    """Whether a visit has a checkpoint, and whether a stop of the run made it durable."""
    is_saved = record.get("checkpoint") is not None
    return {"is_saved": is_saved, "at_stop": bool(record.get("at_stop"))}


@contextlib.contextmanager
def _blaming(number: int, record: Record) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalCorruptError(
            f"journal record {number} does not fit the ones before it "
            f"({type(error).__name__}: {error}): {str(record)[:200]}"
        ) from error
