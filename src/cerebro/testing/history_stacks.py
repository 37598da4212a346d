"""The part of the judgement of a run directory that is about stacks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from cerebro.mop import shard_at
from cerebro.storage import layout
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.types import TrialStatus, stack_unit


@dataclass(slots=True)
class Trial:
    """One trial, as the records so far tell it."""

    number: int
    start: int
    visits: int = 0
    sums: dict[int, dict[str, list[float]]] = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)
    #: References to the checkpoints that must exist, oldest first; the last is the next's parent.
    refs: list[CheckpointRef] = field(default_factory=list)
    status: TrialStatus | None = None
    #: Its end was told by the visit it diverged in; a record of its own may follow.
    is_ending: bool = False
    is_dropped: bool = False
    is_placed: bool = False
    stack: int | None = None
    #: Epochs after which it waits for a promotion; None: it does not.
    target: int | None = None
    #: Who told it to wait.
    held_by: str | None = None
    was_held: bool = False
    #: Which of several trials of one configuration.
    repeat: int = 0
    #: Of these epochs the first are another's, whose state it began with.
    inherited: int = 0
    #: Visits behind its last checkpoint in due order, while a stop of the run has saved more.
    before_stop: int | None = None

    @property
    def is_final(self) -> bool:
        return self.status is not None

    @property
    def is_late(self) -> bool:
        """Whether it was told to wait or to end, perhaps while a visit was under way."""
        return self.is_held or self.was_held or self.status is TrialStatus.STOPPED

    @property
    def is_held(self) -> bool:
        return self.held_by is not None

    @property
    def is_waiting(self) -> bool:
        return self.is_held or (self.target is not None and len(self.metrics) >= self.target)

    def train(self, sums: dict[str, list[float]], record: Mapping[str, Any]) -> None:
        """One more visit."""
        if record.get("at_stop"):
            self.before_stop = self.visits if self.before_stop is None else self.before_stop
        elif record.get("checkpoint") is not None:
            self.before_stop = None
        self.sums[self.visits] = sums
        self.visits += 1

    def end(self, status: TrialStatus) -> None:
        """A failure leaves nothing that is there because of a stop."""
        if self.before_stop is not None and status.is_failure:
            self.go_back(self.before_stop)
        self.status, self.is_ending, self.before_stop = status, False, None

    def go_back(self, visits: int) -> None:
        self.refs = [ref for ref in self.refs if ref.visits <= visits]
        self.visits = visits
        if self.before_stop is not None and self.before_stop >= visits:
            self.before_stop = None

    def promote(self, record: Mapping[str, Any]) -> None:
        """People may let go on what has ended or waits; the search, what waits for it alone."""
        is_person = record["by"] != "search"
        if self.is_final:
            ended = (TrialStatus.FINISHED, TrialStatus.STOPPED)
            if not is_person or "epochs" not in record or self.status not in ended:
                return
            self.status = None
        target = record.get("epochs")
        if target is not None and (is_person or target > (self.target or 0)):
            self.target = target
        if is_person or self.held_by == "search":
            self.held_by = None


@dataclass(slots=True)
class Stack:
    """One stack, as the records so far tell it."""

    unit: int
    trials: tuple[int, ...]
    start: int
    visits: int = 0
    #: Trials of each visit.
    members: list[tuple[int, ...]] = field(default_factory=list)
    refs: list[CheckpointRef] = field(default_factory=list)
    is_dissolved: bool = False


class Require(Protocol):
    def __call__(self, holds: bool, what: str, trial: int | None = None) -> None: ...


class StackJudge:
    """Judges the records of stacks; shares the trials with whoever judges theirs."""

    def __init__(
        self,
        trials: dict[int, Trial],
        steps: int,
        require: Require,
        best_epoch: Callable[[Trial], int | None],
        evaluate: Callable[[Trial, Mapping[str, Any]], None],
    ) -> None:
        self.stacks: dict[int, Stack] = {}
        self._trials = trials
        self._steps = steps
        self._require = require
        self._best_epoch = best_epoch
        self._evaluate = evaluate

    def compose(self, record: Mapping[str, Any]) -> None:
        for number in record["trials"]:
            trial = self._trials[number]
            self._require(not trial.is_placed, "a trial must be placed once", number)
            self._require(not trial.visits, "a trial must be placed before it is trained", number)
            trial.is_placed = True
        for value in record["stacks"]:
            members = tuple(value["trials"])
            self._require(members == tuple(sorted(set(members))), "members must be in order")
            stack = Stack(stack_unit(members[0]), members, value["start"])
            self.stacks[stack.unit] = stack
            for number in members:
                self._require(number in record["trials"], "a member must be placed", number)
                self._require(self._trials[number].stack is None, "one stack a trial", number)
                self._trials[number].stack = stack.unit
                self._trials[number].start = stack.start

    def apply(self, kind: str, record: Mapping[str, Any]) -> Stack:
        stack = self.stacks[stack_unit(record["stack"])]
        self._require(not stack.is_dissolved, "a stack must be dissolved once, and be gone then")
        if kind == "visit":
            self._visit(stack, record)
        elif kind == "epoch":
            for number, metrics in zip(record["trials"], record["metrics"], strict=True):
                trial = self._trials[number]
                # Whoever was told to wait or to end meanwhile was not in all of its visits.
                if trial.visits == (record["epoch"] + 1) * self._steps or not trial.is_late:
                    self._evaluate(trial, {**record, "metrics": metrics})
        elif kind == "taken":
            self._taken(stack, record)
        elif kind == "dissolved":
            self._dissolved(stack, record)
        elif kind == "rollback":
            self._roll_back(stack, record["visits"])
        else:
            self._require(False, f"record type {kind!r} must be known")
        return stack

    def alive(self, stack: Stack) -> list[Trial]:
        found = (self._trials[n] for n in stack.trials if self._trials[n].stack == stack.unit)
        return [trial for trial in found if not trial.is_final and not trial.is_waiting]

    def _visit(self, stack: Stack, record: Mapping[str, Any]) -> None:
        epoch, step = divmod(stack.visits, self._steps)
        found = (record["epoch"], record["step"])
        self._require(found == (epoch, step), f"visit {(epoch, step)} must come, not {found}")
        shard = shard_at(stack.start, epoch, step, self._steps)
        self._require(record["shard"] == shard, f"shard {shard} must come, not {record['shard']}")
        alive = self.alive(stack)
        expected = stack.members[-1] if step else tuple(trial.number for trial in alive)
        trials = tuple(record["trials"])
        # Whoever was told to wait or to end while it was under way is in it.
        late = {n for n in trials if self._trials[n].is_late or self._trials[n].stack != stack.unit}
        has_all = set(expected) <= set(trials) and set(trials) - set(expected) <= late
        self._require(has_all, f"a visit must have {expected}, but has {trials}")
        self._require(bool(alive or late), "a stack without trials must have no more visits")
        diverged = record.get("diverged", {})
        for trial in (each for each in alive if each.visits == stack.visits or not each.is_late):
            number = trial.number
            ready = len(trial.metrics) == epoch
            self._require(ready, f"epoch {epoch} must begin after the one before", number)
            if str(number) in diverged:
                trial.end(TrialStatus.DIVERGED)
                trial.is_ending = True
                continue
            sums = record["members"][trials.index(number)]
            self._require(bool(sums), "a member must have sums", number)
            trial.train(sums, record)
        stack.visits += 1
        stack.members.append(trials)
        if record.get("checkpoint") is not None:
            self._checkpoint(stack, CheckpointRef.from_json(record["checkpoint"]), record)

    def _checkpoint(self, stack: Stack, ref: CheckpointRef, record: Mapping[str, Any]) -> None:
        parent = stack.refs[-1].sha256 if stack.refs else None
        name = layout.checkpoint_name(stack.visits, record["attempt"])
        self._require(
            (ref.unit, ref.visits, ref.name) == (stack.unit, stack.visits, name),
            f"the visit's checkpoint must be {name}, not {ref.name}",
        )
        self._require(ref.parent == parent, f"checkpoint {name} must follow {parent}")
        stack.refs.append(ref)

    def _take_out(self, source: CheckpointRef, taken: list[CheckpointRef], stack: Stack) -> None:
        for ref in taken:
            whole = (ref.visits, ref.name, ref.parent)
            self._require(
                whole == (source.visits, source.name, source.sha256),
                f"what is taken out must follow {source.name} of the stack",
                ref.unit,
            )
            members = stack.members[source.visits - 1]
            self._require(ref.unit in members, "only a member can be taken out", ref.unit)
            trial = self._trials[ref.unit]
            trial.refs = sorted([*trial.refs, ref], key=lambda one: one.visits)

    def _taken(self, stack: Stack, record: Mapping[str, Any]) -> None:
        sources = [ref for ref in stack.refs if ref.name == record["name"]]
        self._require(len(sources) == 1, "members are taken out of a checkpoint that is there")
        if not all(self._trials[n].is_final for n in stack.trials):
            self._require(sources[0] not in stack.refs[-2:], "the last two must stay")
        self._take_out(
            sources[0], [CheckpointRef.from_json(v) for v in record["checkpoints"]], stack
        )
        stack.refs.remove(sources[0])

    def leave(self, trial: Trial, record: Mapping[str, Any]) -> None:
        """A trial goes on alone."""
        stack = self.stacks[trial.stack if trial.stack is not None else 0]
        taken = [CheckpointRef.from_json(value) for value in record["checkpoints"]]
        for source in stack.refs:
            self._take_out(source, [ref for ref in taken if ref.name == source.name], stack)
        trial.stack = None
        self.retain(stack)

    def _dissolved(self, stack: Stack, record: Mapping[str, Any]) -> None:
        taken = [CheckpointRef.from_json(value) for value in record["checkpoints"]]
        for source in stack.refs:
            self._take_out(source, [ref for ref in taken if ref.name == source.name], stack)
        visits = stack.refs[-1].visits if stack.refs else 0
        self._require(record["visits"] == visits, f"trials must go on from visit {visits}")
        for trial in (self._trials[number] for number in stack.trials):
            if trial.stack != stack.unit:
                continue
            trial.stack = None
            if trial.is_final or trial.is_waiting:
                continue
            has_state = any(ref.visits == visits for ref in trial.refs)
            self._require(has_state or not visits, "a trial must get its state", trial.number)
            self._reset(trial, visits)
        stack.refs, stack.is_dissolved = [], True

    def _roll_back(self, stack: Stack, visits: int) -> None:
        self._require(visits <= stack.visits, "a stack must not be rolled forward")
        stack.refs = [ref for ref in stack.refs if ref.visits <= visits]
        last = stack.refs[-1].visits if stack.refs else 0
        self._require(visits == last, f"there must be a checkpoint of visit {visits}")
        stack.visits, stack.members = visits, stack.members[:visits]
        for trial in (self._trials[number] for number in stack.trials):
            if trial.stack == stack.unit and trial.visits >= visits:
                self._reset(trial, visits)

    def _reset(self, trial: Trial, visits: int) -> None:
        trial.go_back(visits)
        trial.metrics = trial.metrics[: visits // self._steps]
        if trial.status is not TrialStatus.STOPPED:
            trial.status = None
        trial.is_ending = trial.is_dropped = False

    def retain(self, stack: Stack) -> None:
        """The last two, as long as it is trained, and what any trial wants."""
        if stack.is_dissolved:
            return
        mine = [self._trials[n] for n in stack.trials if self._trials[n].stack == stack.unit]
        keep = set() if all(trial.is_final for trial in mine) else set(stack.refs[-2:])
        for trial in mine:
            wanted = self._wanted(trial, stack)
            keep |= wanted
            trial.refs = [ref for ref in trial.refs if ref in wanted]
        stack.refs = [ref for ref in stack.refs if ref in keep]

    def _wanted(self, trial: Trial, stack: Stack) -> set[CheckpointRef]:
        """Its last state and that of its best epoch, in a checkpoint of its own if there is one."""
        if trial.is_dropped:
            return set()
        by_visits = {ref.visits: ref for ref in stack.refs if ref.visits <= trial.visits}
        by_visits |= {ref.visits: ref for ref in trial.refs}
        best = self._best_epoch(trial)
        visits = {max(by_visits, default=-1), -1 if best is None else (best + 1) * self._steps}
        visits |= set() if trial.before_stop is None else {trial.before_stop}
        return {by_visits[one] for one in visits if one in by_visits}
