"""How long the rest of a run will take, from the visits it has seen.

What is left of a trial is counted in visits, and a visit costs what the last ones of the same trial
cost, training and evaluation apart. Workers take the trial with most left first, so that they are
busy to the end unless one trial is longer than all others on all workers: the rest takes what is
left in all divided by the workers, or what is left of the longest trial, whichever is more.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

from cerebro.track.records import (
    EpochFinished,
    Record,
    RunStarted,
    TrialAdded,
    TrialChanged,
    TrialFinished,
    VisitFinished,
    VisitStarted,
    WorkerChanged,
)
from cerebro.types import TrialStatus

#: An evaluation against a training visit, until one is measured.
_EVAL_SHARE = 0.25
#: Visits that a mean looks back on; one in so many, the slowest, is left out.
_WINDOW = 16
_ONE_IN = 8
#: The same for what is between visits, where few take most of the time.
_GAPS = 64


class Recent:
    """The mean of the last values without the largest: what warms up, or stalls, is no measure.

    >>> recent = Recent()
    >>> for seconds in (9.0, 1.0, 2.0):
    ...     recent.add(seconds)
    >>> recent.mean
    1.5
    """

    __slots__ = ("_one_in", "_values", "mean")

    def __init__(self, window: int = _WINDOW, one_in: int = _ONE_IN) -> None:
        self._values: deque[float] = deque(maxlen=window)
        self._one_in = one_in
        #: None while there is no value.
        self.mean: float | None = None

    def add(self, value: float) -> None:
        """Look at one more."""
        self._values.append(value)
        count = len(self._values)
        kept = sorted(self._values)[: count - (count + self._one_in - 2) // self._one_in]
        self.mean = sum(kept) / len(kept)


def _gaps() -> Recent:
    return Recent(_GAPS, _GAPS)


@dataclass(slots=True)
class _Cost:
    """What visits of a trial, or of trials that are trained as one, take."""

    train: Recent = field(default_factory=Recent)
    eval: Recent = field(default_factory=Recent)
    #: Seconds that it and a worker for it are both free before a visit.
    gap: Recent = field(default_factory=_gaps)
    #: When its last visit was answered.
    answered_s: float = 0.0


@dataclass(slots=True)
class _Trial:
    """What is known of a trial: its visits so far, and what one takes."""

    train_done: int = 0
    evals_done: int = 0
    #: Shared by the trials that are trained as one, and how many these are.
    cost: _Cost = field(default_factory=_Cost)
    size: int = 1
    is_paused: bool = False


class Forecast:
    """Follows the records of a run, and says how long the rest takes.

    >>> from cerebro.track.records import MemberVisit
    >>> from cerebro.types import Mode
    >>> forecast = Forecast()
    >>> forecast.record(RunStarted(run="r", workers=1, trials=1, epochs=2, train_shards=2,
    ...                            val_shards=0, metric="val_loss", mode=Mode.MIN))
    >>> forecast.record(VisitFinished(trials=(0,), epoch=0, step=0, phase="train", shard=0,
    ...                               worker=0, start_s=1.0, end_s=3.0, compute_s=2.0, data_s=0.0,
    ...                               hop_s=0.0, rows=64, members=(MemberVisit(),)))
    >>> forecast.left_s()
    6.0
    """

    def __init__(self) -> None:
        self._run: RunStarted | None = None
        #: Trials that are not over, and those that are.
        self._trials: dict[int, _Trial] = {}
        self._over: set[int] = set()
        self._epochs_done = 0
        #: Those that are there, or are expected.
        self._workers: set[int] = set()
        self._now_s = 0.0
        #: Of each worker: its visit, and when it last answered.
        self._flights: dict[int, VisitStarted] = {}
        self._answered_s: dict[int, float] = {}
        #: By the trials that are trained as one.
        self._costs: dict[tuple[int, ...], _Cost] = {}
        #: Over all visits: what one takes for each of its trials, an evaluation against a training
        #: visit of the same trial, and seconds between visits.
        self._share = Recent(_GAPS)
        self._eval_share = Recent(_GAPS)
        self._gap = _gaps()

    def record(self, record: Record) -> None:
        """Take one record in."""
        match record:
            case VisitStarted():
                self._now_s = max(self._now_s, record.time_s)
                self._flights[record.worker] = record
            case VisitFinished():
                self._visited(record)
            case EpochFinished():
                self._evaluated(record)
            case TrialAdded():
                self._add(record)
            case TrialChanged():
                self._trial(record.trial).is_paused = record.status is TrialStatus.PAUSED
            case TrialFinished():
                self._trials.pop(record.trial, None)
                self._over.add(record.trial)
            case WorkerChanged():
                self._flights.pop(record.worker, None)
                self._answered_s.pop(record.worker, None)
                (self._workers.add if record.alive else self._workers.discard)(record.worker)
            case RunStarted():
                self._run = record
                self._workers = set(range(record.workers))

    def left_s(self) -> float:
        """Seconds from the last record to the end; NaN before the first visit.

        Where results decide how far trials are trained, that is an upper bound.
        """
        run = self._run
        if run is None or self._share.mean is None:
            return math.nan
        workers = max(1, len(self._workers))
        running_s = self._running_s()
        work_s = longest_s = 0.0
        for number, trial in self._trials.items():
            if trial.is_paused and not run.is_open:
                continue
            train_s, eval_s = self._left_of(trial, run)
            begun_s = running_s.get(number, 0.0)
            work_s += max(0.0, train_s + eval_s - begun_s) / trial.size
            chain_s = train_s + eval_s / max(1, min(workers, run.val_shards)) - begun_s
            longest_s = max(longest_s, chain_s)
        unborn = max(0, run.trials - len(self._trials) - len(self._over))
        if unborn:
            work_s += unborn * sum(self._left_of(_Trial(), run))
        left_s = max(work_s / workers, longest_s) * self._share_of_budget(run, unborn)
        return left_s if run.budget_s is None else min(left_s, max(0.0, run.budget_s - self._now_s))

    def _left_of(self, trial: _Trial, run: RunStarted) -> tuple[float, float]:
        """Seconds of training and of evaluation that are left of a trial."""
        cost = trial.cost
        train_s = _known(cost.train, (self._share.mean or 0.0) * trial.size)
        eval_s = _known(cost.eval, train_s * _known(self._eval_share, _EVAL_SHARE))
        gap_s = _known(cost.gap, self._gap.mean or 0.0)
        trains = max(0, run.epochs * run.train_shards - trial.train_done)
        evals = max(0, run.epochs * run.val_shards - trial.evals_done)
        return trains * (train_s + gap_s), evals * (eval_s + gap_s)

    def _share_of_budget(self, run: RunStarted, unborn: int) -> float:
        """The part of what is planned that the budget of epochs allows."""
        if run.max_epochs is None:
            return 1.0
        steps = max(1, run.train_shards)
        planned = unborn * run.epochs + sum(
            max(0, run.epochs - trial.train_done // steps) for trial in self._trials.values()
        )
        return min(1.0, max(0, run.max_epochs - self._epochs_done) / max(1, planned))

    def _running_s(self) -> dict[int, float]:
        """Of each trial in a visit: the seconds of it that are behind."""
        found: dict[int, float] = {}
        for worker, flight in self._flights.items():
            begun_s = max(flight.time_s, self._answered_s.get(worker, 0.0))
            for number in flight.trials:
                trial = self._trials.get(number)
                if trial is not None:
                    recent = trial.cost.train if flight.phase == "train" else trial.cost.eval
                    spent_s = min(max(0.0, self._now_s - begun_s), recent.mean or 0.0)
                    found[number] = found.get(number, 0.0) + spent_s
        return found

    def _add(self, record: TrialAdded) -> None:
        """A copy has the visits of its parent behind it."""
        run, epochs = self._run, record.parent_epochs
        trial = self._trial(record.trial)
        if run is not None and epochs:
            trial.train_done, trial.evals_done = epochs * run.train_shards, epochs * run.val_shards

    def _trial(self, number: int) -> _Trial:
        # One that was over may go on: people extend trials.
        self._over.discard(number)
        return self._trials.setdefault(number, _Trial())

    def _visited(self, record: VisitFinished) -> None:
        self._now_s = max(self._now_s, record.end_s)
        self._flights.pop(record.worker, None)
        cost = self._costs.setdefault(record.trials, _Cost())
        begun_s, answered_s = record.start_s, self._answered_s.get(record.worker)
        if answered_s is not None:
            # A visit may be handed over before the one before it is answered.
            begun_s = max(begun_s, answered_s)
            gap_s = max(0.0, begun_s - max(answered_s, cost.answered_s))
            cost.gap.add(gap_s)
            self._gap.add(gap_s)
        self._answered_s[record.worker] = record.end_s
        cost.answered_s = max(cost.answered_s, record.end_s)
        self._measure(record, cost, max(0.0, record.end_s - begun_s))
        for number in record.trials:
            trial = self._trial(number)
            trial.cost, trial.size = cost, len(record.trials)
            self._count(trial, record)

    def _measure(self, record: VisitFinished, cost: _Cost, seconds: float) -> None:
        if record.phase == "train":
            cost.train.add(seconds)
            self._share.add(seconds / len(record.trials))
            return
        cost.eval.add(seconds)
        if cost.train.mean:
            self._eval_share.add(seconds / cost.train.mean)

    def _count(self, trial: _Trial, record: VisitFinished) -> None:
        run = self._run
        if run is None:
            return
        if record.phase == "train":
            # By its number: a resumed run does not tell of the visits of an epoch under way.
            trial.train_done = record.epoch * run.train_shards + record.step + 1
        else:
            trial.evals_done = max(trial.evals_done, record.epoch * run.val_shards) + 1

    def _evaluated(self, record: EpochFinished) -> None:
        self._epochs_done += 1
        run, trial = self._run, self._trial(record.trial)
        if run is not None:
            done = record.epoch + 1
            trial.train_done = max(trial.train_done, done * run.train_shards)
            trial.evals_done = max(trial.evals_done, done * run.val_shards)


def _known(recent: Recent, otherwise: float) -> float:
    return otherwise if recent.mean is None else recent.mean
