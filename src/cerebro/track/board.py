"""Where every trial stands, folded from the records: what tables and leaderboards show."""

from __future__ import annotations

from collections import Counter

from cerebro.track.forecast import Forecast
from cerebro.track.ranking import Ranking, TrialRow, is_better, rank
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
from cerebro.types import Mode, TrialStatus

#: How a trial ends that takes no part in the ranking.
FAILED = tuple(status for status in TrialStatus if status.is_failure)


class Board:
    """The fold of all records so far.

    Visits are counted by trial here, for nobody knows beforehand what will be stacked: a visit of
    a stack counts once for each of its trials.

    >>> board = Board()
    >>> board.record(RunStarted(run="r", workers=1, trials=1, epochs=2, train_shards=2,
    ...                         val_shards=0, metric="val_loss", mode=Mode.MIN))
    >>> board.record(TrialAdded(trial=0, params={"lr": 0.1}))
    >>> board.record(EpochFinished(trial=0, epoch=0, metrics={"val_loss": 0.3}, seconds=1.0))
    >>> board.rows[0].metric, board.visits_done, board.visits_total
    (0.3, 2, 4)
    """

    def __init__(self) -> None:
        self.run = RunStarted(
            run="",
            workers=0,
            trials=0,
            epochs=0,
            train_shards=0,
            val_shards=0,
            metric="",
            mode=Mode.MAX,
        )
        self.rows: dict[int, TrialRow] = {}
        #: how many trials are in each status
        self.statuses: Counter[TrialStatus] = Counter()
        #: worker -> its visit
        self.in_flight: dict[int, VisitStarted] = {}
        self.visits_done = 0
        self.now_s = 0.0
        self._forecast = Forecast()
        self._first_s: float | None = None
        self._live_visits = 0
        #: visits of each trial that were trained or evaluated, by this process or before
        self._spent: Counter[int] = Counter()
        self._ranking: Ranking | None = None

    def record(self, record: Record) -> None:
        """Fold one record in."""
        self._forecast.record(record)
        match record:
            case VisitStarted():
                self._visit_started(record)
            case VisitFinished():
                self._visit_finished(record)
            case EpochFinished():
                self._epoch_finished(record)
            case TrialAdded():
                self._add(record)
            case TrialFinished():
                self._trial_finished(record)
            case TrialChanged():
                self._trial_changed(record)
            case WorkerChanged(alive=False):
                self._vacate(record.worker)
            case RunStarted():
                self.run = record
                self._ranking = None

    @property
    def visits_total(self) -> int:
        """Visits of all trials planned, as far as the budget of epochs goes."""
        planned = max(self.run.trials, len(self.rows)) * self.run.epochs * self._visits_per_epoch
        if self.run.max_epochs is None:
            return planned
        left = self.run.max_epochs * self._visits_per_epoch - self._spent.total()
        return min(planned, self.visits_done + max(0, left))

    @property
    def visits_per_s(self) -> float:
        """Speed of this process so far."""
        if self._first_s is None or self.now_s <= self._first_s:
            return 0.0
        return self._live_visits / (self.now_s - self._first_s)

    @property
    def eta_s(self) -> float:
        """Seconds left, at most where the run `is_open`; NaN before the first visit."""
        return self._forecast.left_s()

    def ranked(self) -> Ranking:
        """All trials, best first; sorted anew only after something changed."""
        if self._ranking is None:
            self._ranking = rank(self.rows.values(), self.run.criteria)
        return self._ranking

    @property
    def _visits_per_epoch(self) -> int:
        return self.run.train_shards + self.run.val_shards

    def _row(self, trial: int) -> TrialRow:
        row = self.rows.get(trial)
        return row if row is not None else self._add(TrialAdded(trial=trial, params={}))

    def _add(self, record: TrialAdded) -> TrialRow:
        old = self.rows.get(record.trial)
        if old is not None:
            self.statuses[old.status] -= 1
        row = self.rows[record.trial] = TrialRow(
            trial=record.trial,
            params=record.params,
            epochs=record.parent_epochs,
            proposal=record.proposal,
            repeat=record.repeat,
            parent=record.parent,
            parent_epochs=record.parent_epochs,
        )
        self.statuses[row.status] += 1
        self._ranking = None
        # What is behind the state of a copy is not to be done.
        self._count(row, record.parent_epochs * self._visits_per_epoch)
        return row

    def _trial_changed(self, record: TrialChanged) -> None:
        row = self._row(record.trial)
        row.is_held = record.is_held
        self._set_status(row, record.status)

    def _set_status(self, row: TrialRow, status: TrialStatus) -> None:
        if row.status is not status:
            self.statuses[row.status] -= 1
            self.statuses[status] += 1
            row.status = status

    def _visit_started(self, record: VisitStarted) -> None:
        # What the worker had in hand before was answered, or failed without a record.
        self._vacate(record.worker)
        self.in_flight[record.worker] = record
        place = (record.phase, record.shard)
        for trial in record.trials:
            row = self._row(trial)
            if row.status.is_final:
                continue
            self._set_status(row, TrialStatus.RUNNING)
            row.visits[record.worker] = place
        self.now_s = max(self.now_s, record.time_s)
        if self._first_s is None:
            self._first_s = record.time_s

    def _visit_finished(self, record: VisitFinished) -> None:
        self.now_s = max(self.now_s, record.end_s)
        self._live_visits += len(record.trials)
        flight = self.in_flight.get(record.worker)
        if flight is not None and _is_answered(flight, record):
            del self.in_flight[record.worker]
        training = record.phase == "train"
        for trial, member in zip(record.trials, record.members, strict=True):
            row = self._row(trial)
            row.visits.pop(record.worker, None)
            row.stack = record.trials
            self._spent[trial] += 1
            self._count(row, self._done_by(record, row))
            if training:
                loss = member.metrics.get("loss")
                if loss is None and len(member.losses):
                    loss = float(member.losses[-1])
                row.loss = row.loss if loss is None else loss

    def _done_by(self, record: VisitFinished, row: TrialRow) -> int:
        """Visits of a trial up to this one; those before it may be done anew, after a loss."""
        before = record.epoch * self._visits_per_epoch
        if record.phase == "train":
            return before + record.step + 1
        trained = before + self.run.train_shards
        return min(max(row.done, trained) + 1, before + self._visits_per_epoch)

    def _epoch_finished(self, record: EpochFinished) -> None:
        row = self._row(record.trial)
        self._set_status(row, TrialStatus.RUNNING)
        row.epochs = record.epoch + 1
        self._spent[record.trial] = (row.epochs - row.parent_epochs) * self._visits_per_epoch
        row.loss = record.metrics.get("train_loss", row.loss)
        self._count(row, row.epochs * self._visits_per_epoch)
        value = record.metrics.get(self.run.metric)
        if value is not None and is_better(value, row.metric, self.run.mode):
            row.metric, row.best_epoch, row.metrics = value, record.epoch, record.metrics
            self._ranking = None

    def _trial_finished(self, record: TrialFinished) -> None:
        row = self._row(record.trial)
        self._set_status(row, record.status)
        row.error = record.error
        row.visits.clear()
        self._ranking = None
        # A trial that ended early leaves no work behind.
        self._count(row, self.run.epochs * self._visits_per_epoch)

    def _vacate(self, worker: int) -> None:
        flight = self.in_flight.pop(worker, None)
        if flight is not None:
            for trial in flight.trials:
                self._row(trial).visits.pop(worker, None)

    def _count(self, row: TrialRow, done: int) -> None:
        self.visits_done += done - row.done
        row.done = done


def _is_answered(flight: VisitStarted, record: VisitFinished) -> bool:
    """Trials that ended in a visit are not told of when it is finished."""
    if (flight.epoch, flight.step, flight.phase) != (record.epoch, record.step, record.phase):
        return False
    return flight.trials == record.trials or set(flight.trials) >= set(record.trials)
