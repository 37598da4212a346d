"""What is durable of one trial, and of one stack."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import Batches, Stacking, Sums
from cerebro.types import Json, Metrics, Mode, Params, TrialStatus

#: Who decided, where it was no person.
SEARCH = "search"


@dataclass(slots=True)
class Epoch:
    """A finished epoch of a trial."""

    metrics: Metrics
    #: Training visits behind it.
    visits: int
    seconds: float = 0.0
    #: Seconds that all drivers had worked until then.
    after_s: float = 0.0
    #: It is of the trial that this one is a copy of.
    is_inherited: bool = False


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
    #: Metrics of the batches of these visits, for a task that wants them.
    batches: dict[int, Batches] = field(default_factory=dict)
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
    #: Epochs that must be behind it when it waits for a promotion; None: those of the run.
    target: int | None = None
    #: Who told it to wait, wherever it stands.
    held_by: str | None = None
    #: Which proposal of the sampler it is, and which repeat of that; None: of a person or a copy.
    proposal: int | None = None
    repeat: int = 0
    #: The trial whose state it began with, that trial's params, and the visits behind that state.
    parent: int | None = None
    parent_params: Params | None = None
    parent_visits: int = 0
    #: Rows that a batch is split into, since whole ones did not fit the memory.
    micro_batch: int | None = None
    #: Visits behind its last checkpoint in due order, while a stop of the run has saved more.
    before_stop: int | None = None
    #: Number of the journal record that last told of it.
    touched: int = 0
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
            if value is None or self.epochs[index].is_inherited:
                continue
            if best is None or _better(value, self.epochs[best].metrics[metric], mode):
                best = index
        self._best = (metric, mode, len(self.epochs), best)
        return best

    def train(
        self,
        visit: int,
        sums: Mapping[str, Any],
        steps: int,
        batches: Batches | None = None,
        *,
        is_saved: bool = False,
        at_stop: bool = False,
    ) -> None:
        """One more visit is durable, perhaps with its state, perhaps because the run stopped."""
        self.visits = visit + 1
        if at_stop:
            self.before_stop = visit if self.before_stop is None else self.before_stop
        elif is_saved:
            self.before_stop = None
        if self.status is TrialStatus.PENDING:
            self.status = TrialStatus.RUNNING
        self.sums[visit] = {name: (pair[0], pair[1]) for name, pair in sums.items()}
        self.sums.pop(visit - 2 * steps, None)
        if batches is not None:
            self.batches[visit] = batches
            self.batches.pop(visit - 2 * steps, None)

    def evaluate(self, epoch: Epoch, epochs: int) -> None:
        """One more epoch is over; where it may not go on, it waits. `epochs` are the run's."""
        self.epochs.append(epoch)
        if not self.status.is_final and self.waits(epochs):
            self.status = TrialStatus.PAUSED

    def waits(self, epochs: int) -> bool:
        """Whether it needs a promotion to go on."""
        return self.target is not None and self.target < epochs and len(self.epochs) >= self.target

    def end(self, status: TrialStatus, error: str | None, traceback: str | None) -> None:
        """It reached a final status.

        One that fails is left with what it would have had if the run had not been stopped.
        """
        if self.before_stop is not None and status.is_failure:
            self._cut(self.before_stop)
        self.before_stop = None
        self.status, self.error, self.traceback = status, error, traceback

    @property
    def is_held(self) -> bool:
        """Whether it was told to wait, wherever it stands."""
        return self.held_by is not None

    def hold(self, by: str) -> None:
        """It waits where it stands, until the same lets it go on, or a person."""
        if not self.status.is_final:
            self.status, self.held_by = TrialStatus.PAUSED, by

    def go_on(self, target: int | None, epochs: int, by: str) -> None:
        """It may be trained until `target` epochs are behind it; `epochs` are the run's.

        The search does not undo what a person has decided. What has ended goes on only where a
        person says how far: it may have ended while somebody let it go on.
        """
        is_person = by != SEARCH
        is_revived = is_person and target is not None and not self.status.is_failure
        if self.status.is_final and not is_revived:
            return
        if target is not None and (is_person or self.target is None or target > self.target):
            self.target = target
        if is_person or self.held_by == SEARCH:
            self.held_by = None
        self.status = TrialStatus.RUNNING if self.visits else TrialStatus.PENDING
        if self.is_held or self.waits(epochs):
            self.status = TrialStatus.PAUSED
        self.error = self.traceback = None

    def inherit(self, parent: TrialHistory, visits: int) -> None:
        """Begin with the state that another trial had after so many visits."""
        self.parent, self.parent_params, self.parent_visits = parent.number, parent.params, visits
        if parent.parent_params is not None and parent.parent_visits == visits:
            # A copy of a copy that was not trained: the state is still that of the first.
            self.parent_params = parent.parent_params
        self.visits, self.start = visits, parent.start
        self.epochs = [
            replace(epoch, is_inherited=True) for epoch in parent.epochs if epoch.visits <= visits
        ]
        self.sums = {visit: sums for visit, sums in parent.sums.items() if visit < visits}
        self.batches = {visit: each for visit, each in parent.batches.items() if visit < visits}

    def roll_back(self, visits: int, epochs: int) -> None:
        """Forget everything after the first `visits` training visits; `epochs` are the run's."""
        self.checkpoints = [ref for ref in self.checkpoints if ref.visits <= visits]
        self.epochs = [epoch for epoch in self.epochs if epoch.visits <= visits]
        self._cut(visits)
        if self.before_stop is not None and self.before_stop >= visits:
            self.before_stop = None
        self.is_dropped = False
        # What was decided about it stays.
        if self.status is not TrialStatus.STOPPED:
            self.status = TrialStatus.RUNNING if visits else TrialStatus.PENDING
            self.error = self.traceback = None
            if self.is_held or self.waits(epochs):
                self.status = TrialStatus.PAUSED
        self._best = ("", None, 0, None)

    def _cut(self, visits: int) -> None:
        self.sums = {visit: sums for visit, sums in self.sums.items() if visit < visits}
        self.batches = {visit: each for visit, each in self.batches.items() if visit < visits}
        self.visits = visits


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
