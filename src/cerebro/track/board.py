"""Where every trial stands, folded from the records: what tables and leaderboards show."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from cerebro.track.forecast import Forecast
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
from cerebro.types import Json, Metrics, Mode, Params, TrialStatus, trial_id

#: How a trial ends that takes no part in the ranking.
FAILED = tuple(status for status in TrialStatus if status.is_failure)


@dataclass(slots=True, kw_only=True)
class TrialRow:
    """One trial. ``metric`` is its best value, reached with ``metrics`` in ``best_epoch``."""

    trial: int
    params: Params
    status: TrialStatus = TrialStatus.PENDING
    epochs: int = 0
    metric: float | None = None
    best_epoch: int | None = None
    metrics: Metrics = field(default_factory=dict)
    loss: float | None = None
    error: str | None = None
    #: worker -> (phase, shard) of the visits in flight
    visits: dict[int, tuple[str, int]] = field(default_factory=dict)
    #: the trials of its last visit
    stack: tuple[int, ...] = ()
    #: visits answered, for the progress bar
    done: int = 0


def ranked(rows: Iterable[TrialRow], mode: Mode) -> list[TrialRow]:
    """Rows best first: by metric, then trial number; failed ones and those without a value last, by
    number.

    >>> a = TrialRow(trial=0, params={}, metric=0.5)
    >>> b = TrialRow(trial=1, params={}, metric=0.9)
    >>> [row.trial for row in ranked([a, b], Mode.MAX)]
    [1, 0]
    """
    sign = -1.0 if mode == Mode.MAX else 1.0

    def key(row: TrialRow) -> tuple[bool, float, int]:
        if row.metric is None or not has_rank(row):
            return True, 0.0, row.trial
        return False, sign * row.metric, row.trial

    return sorted(rows, key=key)


def has_rank(row: TrialRow) -> bool:
    """Whether the trial takes part in the ranking: it has a value and did not fail.

    >>> has_rank(TrialRow(trial=0, params={}, metric=0.5, status=TrialStatus.DIVERGED))
    False
    """
    return row.metric is not None and row.status not in FAILED


def leaderboard(rows: Iterable[TrialRow]) -> list[dict[str, Json]]:
    """What leaderboard.csv and `Result.leaderboard` say about rows already ranked.

    >>> leaderboard([TrialRow(trial=0, params={"lr": 0.1}, metric=0.5, metrics={"val_loss": 0.5})])
    ... # doctest: +NORMALIZE_WHITESPACE
    [{'rank': 1, 'trial': 't0000', 'status': 'pending', 'val_loss': 0.5, 'epoch': None,
      'epochs': 0, 'params.lr': 0.1, 'error': None}]
    """
    return [
        {
            "rank": rank if has_rank(row) else None,
            "trial": trial_id(row.trial),
            "status": str(row.status),
            **row.metrics,
            "epoch": row.best_epoch,
            "epochs": row.epochs,
            **{f"params.{name}": value for name, value in row.params.items()},
            "error": row.error,
        }
        for rank, row in enumerate(rows, start=1)
    ]


def is_better(value: float, than: float | None, mode: Mode) -> bool:
    """Whether a value beats another; NaN and infinities never do.

    >>> is_better(0.9, 0.8, Mode.MAX), is_better(float("nan"), None, Mode.MIN)
    (True, False)
    """
    if not math.isfinite(value):
        return False
    if than is None:
        return True
    return value > than if mode == Mode.MAX else value < than


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
        self._ranking: list[TrialRow] = []
        self._is_ranked = True

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
                self._add(record.trial, record.params)
            case TrialFinished():
                self._trial_finished(record)
            case TrialChanged():
                self._set_status(self._row(record.trial), record.status)
            case WorkerChanged(alive=False):
                self._vacate(record.worker)
            case RunStarted():
                self.run = record
                self._is_ranked = False

    @property
    def visits_total(self) -> int:
        """Visits of all trials planned."""
        return max(self.run.trials, len(self.rows)) * self.run.epochs * self._visits_per_epoch

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

    def ranked(self) -> list[TrialRow]:
        """All trials, best first; sorted anew only after something changed."""
        if not self._is_ranked:
            self._ranking = ranked(self.rows.values(), self.run.mode)
            self._is_ranked = True
        return list(self._ranking)

    @property
    def _visits_per_epoch(self) -> int:
        return self.run.train_shards + self.run.val_shards

    def _row(self, trial: int) -> TrialRow:
        row = self.rows.get(trial)
        return row if row is not None else self._add(trial, {})

    def _add(self, trial: int, params: Params) -> TrialRow:
        old = self.rows.get(trial)
        if old is not None:
            self.statuses[old.status] -= 1
        row = self.rows[trial] = TrialRow(trial=trial, params=params)
        self.statuses[row.status] += 1
        self._is_ranked = False
        return row

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
            self._count(row, row.done + 1)
            if training:
                loss = member.metrics.get("loss")
                if loss is None and len(member.losses):
                    loss = float(member.losses[-1])
                row.loss = row.loss if loss is None else loss

    def _epoch_finished(self, record: EpochFinished) -> None:
        row = self._row(record.trial)
        self._set_status(row, TrialStatus.RUNNING)
        row.epochs = record.epoch + 1
        row.loss = record.metrics.get("train_loss", row.loss)
        self._count(row, row.epochs * self._visits_per_epoch)
        value = record.metrics.get(self.run.metric)
        if value is not None and is_better(value, row.metric, self.run.mode):
            row.metric, row.best_epoch, row.metrics = value, record.epoch, record.metrics
            self._is_ranked = False

    def _trial_finished(self, record: TrialFinished) -> None:
        row = self._row(record.trial)
        self._set_status(row, record.status)
        row.error = record.error
        row.visits.clear()
        self._is_ranked = False
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
