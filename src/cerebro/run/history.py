"""What a run's journal says: a pure fold of its records.

The driver applies each record once it is durable, and a resumed driver applies them all again, so
both hold the same history by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, cast

from cerebro.errors import JournalCorruptError
from cerebro.run.past import Epoch, StackHistory, TrialHistory
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
    "ranking",
]

Record = Mapping[str, Json]

#: Records of trials that often come for all members of a stack at once.
_TOGETHER = frozenset({"epoch", "trial_end", "dropped"})
#: Checkpoints of a stack beyond which those of its members that still count are taken out.
KEPT = 6


class Extract(NamedTuple):
    """A stack's checkpoint, and the trials whose states in it are wanted."""

    ref: CheckpointRef
    trials: tuple[int, ...]


@dataclass(slots=True)
class RunHistory:
    """All trials of a run."""

    #: Training visits in an epoch.
    steps: int
    metric: str
    mode: Mode
    trials: dict[int, TrialHistory] = field(default_factory=dict)
    #: By unit.
    stacks: dict[int, StackHistory] = field(default_factory=dict)
    #: How many drivers have worked on the run.
    drivers: int = 0
    is_finished: bool = False
    summary: dict[str, Any] = field(default_factory=dict)
    #: Units of which some checkpoints may have become superfluous, and those that have.
    _touched: dict[int, None] = field(default_factory=dict, compare=False, repr=False)
    _superfluous: list[CheckpointRef] = field(default_factory=list, compare=False, repr=False)

    @classmethod
    def replay(
        cls, records: Iterable[Record], *, steps: int, metric: str, mode: Mode
    ) -> RunHistory:
        """The history that these records make; `metric` and `mode` are those it ends with."""
        numbered = list(enumerate(records, 1))
        history = cls(steps, metric, mode)
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

    def is_over(self, stack: StackHistory) -> bool:
        """Whether nothing of a stack is left to train."""
        return stack.is_dissolved or all(self.trials[n].status.is_final for n in stack.trials)

    def kept(self, trial: TrialHistory) -> list[CheckpointRef]:
        """Checkpoints with the trial's last state and that of its best epoch, oldest first.

        Those of its stack are among them.
        """
        stack = None if trial.stack is None else self.stacks[trial.stack]
        if stack is None:
            return trial.checkpoints
        if trial.is_dropped:
            return []
        refs = [ref for ref in stack.checkpoints if ref.visits <= trial.visits]
        if trial.checkpoints:
            own = {ref.visits: ref for ref in trial.checkpoints}
            refs = sorted({**{ref.visits: ref for ref in refs}, **own}.values(), key=_by_visits)
        best = trial.best_epoch(self.metric, self.mode)
        visits = -1 if best is None else trial.epochs[best].visits
        return [ref for ref in refs if ref is refs[-1] or ref.visits == visits]

    def extracts(self, stack: StackHistory, limit: int = KEPT) -> list[Extract]:
        """What to take out of a stack's checkpoints so that at most `limit` are kept."""
        surplus = stack.checkpoints[: max(0, len(stack.checkpoints) - limit)]
        if not surplus:
            return []
        wanted: dict[str, list[int]] = {ref.name: [] for ref in surplus}
        for number in stack.trials:
            for ref in self.kept(self.trials[number]):
                if ref.is_stack and ref.name in wanted:
                    wanted[ref.name].append(number)
        return [Extract(ref, tuple(wanted[ref.name])) for ref in surplus]

    def _fold(self, record: Record) -> None:
        kind = str(record["type"])
        if kind not in _TOGETHER and self._touched:
            self._settle()
        if kind == "driver":
            self.drivers += 1
            self.is_finished = False
        elif kind == "trial":
            number = cast(int, record["trial"])
            params = cast("dict[str, Json]", record["params"])
            self.trials[number] = TrialHistory(number, params, cast(int, record["start"]))
        elif kind == "done":
            self.is_finished = True
            self.summary = dict(cast("dict[str, Any]", record.get("summary") or {}))
        elif kind == "forced":
            self._apply_change(str(record["field"]), record["new"])
        elif kind == "stacks":
            self._compose(record)
        elif "stack" in record:
            stack = self.stacks[stack_unit(cast(int, record["stack"]))]
            self._apply_stack(kind, stack, record)
            self._touched[stack.unit] = None
        else:
            trial = self.trials[cast(int, record["trial"])]
            self._apply_trial(kind, trial, record)
            self._touched[trial.number if trial.stack is None else trial.stack] = None

    def _apply_change(self, field: str, value: Json) -> None:
        """From now on the best is another; checkpoints of the best until now may go, or be gone."""
        if field == "metric":
            self.metric = str(value)
        elif field == "mode":
            self.mode = Mode(str(value))

    # Trials

    def _apply_trial(self, kind: str, trial: TrialHistory, record: Record) -> None:
        if kind == "visit":
            visit = self._visit_of(record, trial.visits, f"trial {trial.number}")
            trial.train(visit, cast("dict[str, Any]", record["sums"]), self.steps)
            if record.get("checkpoint") is not None:
                trial.checkpoints.append(CheckpointRef.from_json(record["checkpoint"]))
        elif kind == "epoch":
            metrics = cast("Metrics", record["metrics"])
            seconds = cast(float, record.get("seconds", 0.0))
            visits = (cast(int, record["epoch"]) + 1) * self.steps
            trial.epochs.append(Epoch(dict(metrics), visits, seconds))
        elif kind == "trial_end":
            error, traceback = record.get("error"), record.get("traceback")
            status = TrialStatus(cast(str, record["status"]))
            trial.end(status, cast("str | None", error), cast("str | None", traceback))
        elif kind == "dropped":
            trial.is_dropped = True
        elif kind == "rollback":
            trial.roll_back(cast(int, record["visits"]))
        else:
            raise ValueError(f"unknown record type {kind!r}")

    def _visit_of(self, record: Record, visits: int, whose: str) -> int:
        visit = cast(int, record["epoch"]) * self.steps + cast(int, record["step"])
        if visit != visits:
            raise ValueError(f"visit {visit} of {whose} follows {visits}")
        return visit

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
        elif kind == "rollback":
            visits = cast(int, record["visits"])
            stack.roll_back(visits)
            # Those that ended before are no part of that state.
            for trial in (self.trials[number] for number in stack.trials):
                if trial.visits >= visits:
                    trial.roll_back(visits)
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
            if trial.status.is_final:
                continue
            if str(number) in diverged:
                trial.end(TrialStatus.DIVERGED, diverged[str(number)], None)
            else:
                trial.train(visit, sums, self.steps)

    def _take_out(self, record: Record) -> None:
        """Members have checkpoints of their own now."""
        for value in cast("list[Json]", record["checkpoints"]):
            ref = CheckpointRef.from_json(value)
            trial = self.trials[ref.unit]
            trial.checkpoints = sorted([*trial.checkpoints, ref], key=_by_visits)

    def _dissolve(self, stack: StackHistory, visits: int) -> None:
        self._superfluous += stack.checkpoints
        stack.checkpoints, stack.is_dissolved = [], True
        for trial in (self.trials[number] for number in stack.trials):
            trial.stack = None
            if not trial.status.is_final and trial.visits != visits:
                trial.roll_back(visits)

    # Which checkpoints are kept

    def _settle(self) -> None:
        touched, self._touched = self._touched, {}
        for unit in touched:
            if unit < 0:
                self._retain_stack(self.stacks[unit])
            else:
                self._retain(self.trials[unit])

    def _retain(self, trial: TrialHistory) -> None:
        """Keep the last two checkpoints (the last one of a finished trial) and the best epoch's."""
        keep = {ref.name for ref in trial.checkpoints[-1 if trial.status.is_final else -2 :]}
        best = trial.best_epoch(self.metric, self.mode)
        if trial.is_dropped:
            keep = set()
        elif best is not None:
            visits = trial.epochs[best].visits
            keep |= {ref.name for ref in trial.checkpoints if ref.visits == visits}
        dropped = [ref for ref in trial.checkpoints if ref.name not in keep]
        if dropped:
            trial.checkpoints = [ref for ref in trial.checkpoints if ref.name in keep]
            self._superfluous += dropped

    def _retain_stack(self, stack: StackHistory) -> None:
        """Keep the last two (none of a stack that is over) and all that any member wants."""
        if stack.is_dissolved:
            return
        keep = set() if self.is_over(stack) else {ref.name for ref in stack.checkpoints[-2:]}
        for trial in (self.trials[number] for number in stack.trials):
            kept = self.kept(trial)
            keep |= {ref.name for ref in kept if ref.is_stack}
            if trial.checkpoints:
                own = [ref for ref in trial.checkpoints if ref in kept]
                self._superfluous += [ref for ref in trial.checkpoints if ref not in own]
                trial.checkpoints = own
        self._superfluous += [ref for ref in stack.checkpoints if ref.name not in keep]
        stack.checkpoints = [ref for ref in stack.checkpoints if ref.name in keep]


def ranking(history: RunHistory) -> list[TrialHistory]:
    """Trials from best to worst by their best epoch; those without a value last, by number."""
    metric, mode = history.metric, history.mode

    def key(trial: TrialHistory) -> tuple[bool, float, int]:
        best = trial.best_epoch(metric, mode)
        if best is None or trial.status.is_failure:
            return True, 0.0, trial.number
        value = trial.epochs[best].metrics[metric]
        return False, -value if mode is Mode.MAX else value, trial.number

    return sorted(history.trials.values(), key=key)


def _by_visits(ref: CheckpointRef) -> int:
    return ref.visits


@contextlib.contextmanager
def _blaming(number: int, record: Record) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError, IndexError) as error:
        raise JournalCorruptError(
            f"journal record {number} does not fit the ones before it "
            f"({type(error).__name__}: {error}): {str(record)[:200]}"
        ) from error
