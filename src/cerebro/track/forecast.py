"""How long the rest of a run will take, from the visits it has seen.

What is left of a trial is counted in visits, and a visit costs what the last ones of the same trial
cost, training and evaluation apart. Workers take the trial with most left first, so that they are
busy to the end unless one trial is longer than all others on all workers: the rest takes what is
left in all divided by the workers, or what is left of the longest trial, whichever is more.
"""

from __future__ import annotations

import math
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
#: Visits that a mean looks back on, of one trial and of all.
_WINDOW = 32
_WINDOW_OF_ALL = 256


@dataclass(slots=True)
class Recent:
    """The mean of the last values. The first one, which warms up, counts only while it is alone.

    >>> recent = Recent()
    >>> for seconds in (9.0, 1.0, 1.0):
    ...     recent.add(seconds)
    >>> recent.mean
    1.0
    """

    window: int = _WINDOW
    mean: float = 0.0
    count: int = 0

    def add(self, value: float) -> None:
        """Look at one more."""
        self.mean += (value - self.mean) / min(max(self.count, 1), self.window)
        self.count += 1


@dataclass(slots=True)
class _Trial:
    """What is known of a trial: its visits so far, and the seconds of one."""

    train_done: int = 0
    evals_done: int = 0
    train: Recent = field(default_factory=Recent)
    eval: Recent = field(default_factory=Recent)
    #: Trials that are trained as one with it, itself included; those share what a visit costs.
    size: int = 1
    #: When its last visit was answered.
    answered_s: float = 0.0
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
        self._lost = 0
        self._now_s = 0.0
        #: Of each worker: its visit, and when it last answered.
        self._flights: dict[int, VisitStarted] = {}
        self._answered_s: dict[int, float] = {}
        #: Over all visits: seconds that worker and trial are both free before one, what one takes
        #: for each of its trials, and an evaluation against a training visit of the same trial.
        self._gap = Recent(_WINDOW_OF_ALL)
        self._share = Recent(_WINDOW_OF_ALL)
        self._eval_share = Recent(_WINDOW_OF_ALL)

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
                self._trial(record.trial)
            case TrialChanged():
                self._trial(record.trial).is_paused = record.status is TrialStatus.PAUSED
            case TrialFinished():
                self._trials.pop(record.trial, None)
                self._over.add(record.trial)
            case WorkerChanged():
                self._flights.pop(record.worker, None)
                self._answered_s.pop(record.worker, None)
                self._lost = max(0, self._lost + (-1 if record.alive else 1))
            case RunStarted():
                self._run = record

    def left_s(self) -> float:
        """Seconds from the last record to the end; NaN before the first visit.

        Where results decide how far trials are trained, that is an upper bound.
        """
        run = self._run
        if run is None or not self._share.count:
            return math.nan
        workers = max(1, run.workers - self._lost)
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
        share_s = self._share.mean * trial.size
        train_s = trial.train.mean if trial.train.count else share_s
        eval_share = self._eval_share.mean if self._eval_share.count else _EVAL_SHARE
        eval_s = trial.eval.mean if trial.eval.count else train_s * eval_share
        trains = max(0, run.epochs * run.train_shards - trial.train_done)
        evals = max(0, run.epochs * run.val_shards - trial.evals_done)
        return trains * (train_s + self._gap.mean), evals * (eval_s + self._gap.mean)

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
                    recent = trial.train if flight.phase == "train" else trial.eval
                    spent_s = min(max(0.0, self._now_s - begun_s), recent.mean)
                    found[number] = found.get(number, 0.0) + spent_s
        return found

    def _trial(self, number: int) -> _Trial:
        # One that was over may go on: people extend trials.
        self._over.discard(number)
        return self._trials.setdefault(number, _Trial())

    def _visited(self, record: VisitFinished) -> None:
        self._now_s = max(self._now_s, record.end_s)
        self._flights.pop(record.worker, None)
        size, begun_s = len(record.trials), record.start_s
        answered_s = self._answered_s.get(record.worker)
        if answered_s is not None:
            # A visit may be handed over before the one before it is answered.
            begun_s = max(begun_s, answered_s)
            free_s = max(self._trial(number).answered_s for number in record.trials)
            self._gap.add(max(0.0, begun_s - max(answered_s, free_s)))
        self._answered_s[record.worker] = record.end_s
        seconds = max(0.0, record.end_s - begun_s)
        for number in record.trials:
            self._count(self._trial(number), record, seconds)
        if record.phase == "train":
            self._share.add(seconds / size)

    def _count(self, trial: _Trial, record: VisitFinished, seconds: float) -> None:
        run, trial.size = self._run, len(record.trials)
        trial.answered_s = max(trial.answered_s, record.end_s)
        if record.phase == "train":
            trial.train.add(seconds)
            # By its number: a resumed run does not tell of the visits of an epoch under way.
            trial.train_done = record.epoch * (run.train_shards if run else 0) + record.step + 1
            return
        trial.eval.add(seconds)
        trial.evals_done = max(trial.evals_done, record.epoch * (run.val_shards if run else 0)) + 1
        if trial.train.mean:
            self._eval_share.add(seconds / trial.train.mean)

    def _evaluated(self, record: EpochFinished) -> None:
        self._epochs_done += 1
        run, trial = self._run, self._trial(record.trial)
        if run is not None:
            done = record.epoch + 1
            trial.train_done = max(trial.train_done, done * run.train_shards)
            trial.evals_done = max(trial.evals_done, done * run.val_shards)
