"""What a run's journal says: a pure fold of its records.

The driver applies each record once it is durable, and a resumed driver applies them all again, so
both hold the same history by construction.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cerebro.errors import JournalCorruptError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.types import Json, Metrics, Mode, Params, TrialStatus

Record = Mapping[str, Json]


@dataclass(slots=True)
class Epoch:
    """A finished epoch of a trial."""

    metrics: Metrics
    #: Training visits behind it.
    visits: int
    seconds: float = 0.0


@dataclass(slots=True)
class TrialHistory:
    """One trial, as far as it is durable."""

    number: int
    params: Params
    start: int
    status: TrialStatus = TrialStatus.PENDING
    #: Training visits done and durable.
    visits: int = 0
    #: Sums of the visits of this epoch and the one before, by visit.
    sums: dict[int, dict[str, tuple[float, int]]] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    #: Checkpoints that should exist, oldest first.
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    #: Its checkpoints were removed because it is not among the best.
    is_dropped: bool = False

    @property
    def last_checkpoint(self) -> CheckpointRef | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def best_epoch(self, metric: str, mode: Mode) -> int | None:
        """The first epoch with the best value; None if no epoch has the metric."""
        best: int | None = None
        for index, epoch in enumerate(self.epochs):
            value = epoch.metrics.get(metric)
            if value is None:
                continue
            if best is None or _better(value, self.epochs[best].metrics[metric], mode):
                best = index
        return best

    def roll_back(self, visits: int) -> None:
        """Forget everything after the first `visits` training visits."""
        self.checkpoints = [ref for ref in self.checkpoints if ref.visits <= visits]
        self.epochs = [epoch for epoch in self.epochs if epoch.visits <= visits]
        self.sums = {visit: sums for visit, sums in self.sums.items() if visit < visits}
        self.visits = visits
        self.status = TrialStatus.RUNNING if visits else TrialStatus.PENDING
        self.error = self.traceback = None


@dataclass(slots=True)
class RunHistory:
    """All trials of a run."""

    #: Training visits in an epoch.
    steps: int
    metric: str
    mode: Mode
    trials: dict[int, TrialHistory] = field(default_factory=dict)
    #: How many drivers have worked on the run.
    drivers: int = 0
    is_finished: bool = False
    summary: dict[str, Any] = field(default_factory=dict)

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
                history.apply(record)
        return history

    def apply(self, record: Record) -> list[CheckpointRef]:
        """Take one more durable record into account; gives the checkpoints it makes superfluous."""
        kind = record["type"]
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
        else:
            trial = self.trials[cast(int, record["trial"])]
            self._apply_trial(str(kind), trial, record)
            return self._retain(trial)
        return []

    @property
    def has_trained(self) -> bool:
        """Whether any visit is durable."""
        return any(trial.visits for trial in self.trials.values())

    def _apply_change(self, field: str, value: Json) -> None:
        """From now on the best is another; checkpoints of the best until now may go, or be gone."""
        if field == "metric":
            self.metric = str(value)
        elif field == "mode":
            self.mode = Mode(str(value))

    def _apply_trial(self, kind: str, trial: TrialHistory, record: Record) -> None:
        if kind == "visit":
            self._apply_visit(trial, record)
        elif kind == "epoch":
            metrics = cast("Metrics", record["metrics"])
            seconds = cast(float, record.get("seconds", 0.0))
            visits = (cast(int, record["epoch"]) + 1) * self.steps
            trial.epochs.append(Epoch(dict(metrics), visits, seconds))
        elif kind == "trial_end":
            trial.status = TrialStatus(cast(str, record["status"]))
            trial.error = cast("str | None", record.get("error"))
            trial.traceback = cast("str | None", record.get("traceback"))
        elif kind == "dropped":
            trial.is_dropped = True
        elif kind == "rollback":
            trial.roll_back(cast(int, record["visits"]))
        else:
            raise ValueError(f"unknown record type {kind!r}")

    def _apply_visit(self, trial: TrialHistory, record: Record) -> None:
        visit = cast(int, record["epoch"]) * self.steps + cast(int, record["step"])
        if visit != trial.visits:
            raise ValueError(f"visit {visit} of trial {trial.number} follows {trial.visits}")
        trial.visits = visit + 1
        trial.status = TrialStatus.RUNNING
        sums = cast("dict[str, list[Any]]", record["sums"])
        trial.sums[visit] = {name: (pair[0], pair[1]) for name, pair in sums.items()}
        trial.sums.pop(visit - 2 * self.steps, None)
        if record.get("checkpoint") is not None:
            trial.checkpoints.append(CheckpointRef.from_json(record["checkpoint"]))

    def _retain(self, trial: TrialHistory) -> list[CheckpointRef]:
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
        return dropped


def ranking(history: RunHistory) -> list[TrialHistory]:
    """Trials from best to worst by their best epoch; those without a value last, by number."""
    metric, mode = history.metric, history.mode

    def key(trial: TrialHistory) -> tuple[bool, float, int]:
        best = trial.best_epoch(metric, mode)
        if best is None or trial.status in (TrialStatus.FAILED, TrialStatus.DIVERGED):
            return True, 0.0, trial.number
        value = trial.epochs[best].metrics[metric]
        return False, -value if mode is Mode.MAX else value, trial.number

    return sorted(history.trials.values(), key=key)


def _better(value: float, than: float, mode: Mode) -> bool:
    return value > than if mode is Mode.MAX else value < than


@contextlib.contextmanager
def _blaming(number: int, record: Record) -> Iterator[None]:
    try:
        yield
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise JournalCorruptError(
            f"journal record {number} does not fit the ones before it "
            f"({type(error).__name__}: {error}): {str(record)[:200]}"
        ) from error
