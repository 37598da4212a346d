"""What is durable of one trial, and of one stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import Stacking, Sums
from cerebro.types import Json, Metrics, Mode, Params, TrialStatus


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
    sums: dict[int, Sums] = field(default_factory=dict)
    epochs: list[Epoch] = field(default_factory=list)
    #: Checkpoints of its own that should exist, oldest first.
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    error: str | None = None
    traceback: str | None = None
    #: Its checkpoints were removed because it is not among the best.
    is_dropped: bool = False
    #: It was decided whether it is trained in a stack.
    is_placed: bool = False
    #: The stack that it is in.
    stack: int | None = None
    #: The last answer of `best_epoch`: metric, mode, epochs looked at, the best of them.
    _best: tuple[str, Mode | None, int, int | None] = field(
        default=("", None, 0, None), compare=False, repr=False
    )

    @property
    def last_checkpoint(self) -> CheckpointRef | None:
        return self.checkpoints[-1] if self.checkpoints else None

    def best_epoch(self, metric: str, mode: Mode) -> int | None:
        """The first epoch with the best value; None if no epoch has the metric."""
        known, known_mode, seen, best = self._best
        if (known, known_mode) != (metric, mode) or seen > len(self.epochs):
            seen, best = 0, None
        for index in range(seen, len(self.epochs)):
            value = self.epochs[index].metrics.get(metric)
            if value is None:
                continue
            if best is None or _better(value, self.epochs[best].metrics[metric], mode):
                best = index
        self._best = (metric, mode, len(self.epochs), best)
        return best

    def train(self, visit: int, sums: Mapping[str, Any], steps: int) -> None:
        """One more visit is durable."""
        self.visits = visit + 1
        self.status = TrialStatus.RUNNING
        self.sums[visit] = {name: (pair[0], pair[1]) for name, pair in sums.items()}
        self.sums.pop(visit - 2 * steps, None)

    def end(self, status: TrialStatus, error: str | None, traceback: str | None) -> None:
        """It reached a final status."""
        self.status, self.error, self.traceback = status, error, traceback

    def roll_back(self, visits: int) -> None:
        """Forget everything after the first `visits` training visits."""
        self.checkpoints = [ref for ref in self.checkpoints if ref.visits <= visits]
        self.epochs = [epoch for epoch in self.epochs if epoch.visits <= visits]
        self.sums = {visit: sums for visit, sums in self.sums.items() if visit < visits}
        self.visits = visits
        self.status = TrialStatus.RUNNING if visits else TrialStatus.PENDING
        self.error = self.traceback = None
        self.is_dropped = False
        self._best = ("", None, 0, None)


@dataclass(slots=True)
class StackHistory:
    """Trials that are trained as one, as far as it is durable."""

    unit: int
    #: Those it began with.
    trials: tuple[int, ...]
    start: int
    stacking: Stacking
    #: Training visits done and durable.
    visits: int = 0
    #: (visits done before, trials): who was in it from then on.
    members: list[tuple[int, tuple[int, ...]]] = field(default_factory=list)
    #: Checkpoints that should exist, oldest first.
    checkpoints: list[CheckpointRef] = field(default_factory=list)
    #: Its trials go on alone.
    is_dissolved: bool = False

    @classmethod
    def from_json(cls, unit: int, value: Mapping[str, Json]) -> StackHistory:
        trials = tuple(cast("list[int]", value["trials"]))
        stacking = Stacking(**cast("dict[str, Any]", value["stack"]))
        start = cast(int, value["start"])
        return cls(unit, trials, start, stacking, members=[(0, trials)])

    def members_at(self, visits: int) -> tuple[int, ...]:
        """The trials in its state after so many visits."""
        return next(
            trials for first, trials in reversed(self.members) if first < visits or not first
        )

    def train(self, visit: int, trials: tuple[int, ...], checkpoint: Json) -> None:
        """One more visit is durable."""
        if trials != self.members[-1][1]:
            self.members.append((visit, trials))
        self.visits = visit + 1
        if checkpoint is not None:
            self.checkpoints.append(CheckpointRef.from_json(checkpoint))

    def roll_back(self, visits: int) -> None:
        """Forget everything after the first `visits` training visits."""
        self.checkpoints = [ref for ref in self.checkpoints if ref.visits <= visits]
        self.members = [(n, trials) for n, trials in self.members if n < visits or not n]
        self.visits = visits


def _better(value: float, than: float, mode: Mode) -> bool:
    return value > than if mode is Mode.MAX else value < than
