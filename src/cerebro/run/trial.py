"""What the driver knows of a trial beyond what is durable, and the records it makes of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from cerebro.backend.base import Done, Failure, FailureKind
from cerebro.train.visit import Sums
from cerebro.types import Json, Metrics, Params, TrialStatus

Record = dict[str, Json]


@dataclass(slots=True)
class LiveTrial:
    """A trial that the driver is working on."""

    number: int
    params: Params
    #: Sums of training visits, by visit.
    train: dict[int, Sums] = field(default_factory=dict)
    #: Sums of evaluations, by (epoch, validation shard).
    evals: dict[tuple[int, int], Sums] = field(default_factory=dict)
    #: Records of visits that wait for their epoch's checkpoint.
    waiting: list[Record] = field(default_factory=list)
    #: A checkpoint of it is being written.
    is_saving: bool = False
    #: A visit that is done before the one before it is durable, and when.
    held: tuple[Done, float] | None = None
    #: In training and evaluation loops, this epoch.
    seconds: float = 0.0
    #: What went wrong last.
    failure: Failure | None = None

    def add(self, event: Done) -> None:
        """Take a visit's sums."""
        call, report = event.call, event.report
        if call.is_training:
            self.train[call.visits - 1] = report.sums
        else:
            self.evals[call.epoch, call.step] = report.sums
        self.seconds += report.compute_s

    def lose(self, message: str) -> None:
        """Its worker is gone."""
        self.failure = Failure(
            kind=FailureKind.ERROR,
            message=message,
            traceback="",
            signature=message,
            error="WorkerLost",
        )

    def visit_record(self, event: Done, started: float, ended: float) -> Record:
        """The journal record of a training visit."""
        call, report = event.call, event.report
        return {
            "type": "visit",
            "trial": self.number,
            "epoch": call.epoch,
            "step": call.step,
            "shard": call.shard,
            "attempt": call.attempt,
            "worker": event.worker,
            "start_s": round(started, 6),
            "end_s": round(ended, 6),
            "rows": report.rows,
            "sums": {name: list(pair) for name, pair in report.sums.items()},
        }

    def epoch_record(self, epoch: int, train_shards: int, val_shards: int) -> Record:
        """The journal record of an epoch whose visits are all done."""
        first = epoch * train_shards
        train = [self.train.pop(first + step) for step in range(train_shards)]
        evals = [self.evals.pop((epoch, shard)) for shard in range(val_shards)]
        seconds, self.seconds = self.seconds, 0.0
        return {
            "type": "epoch",
            "trial": self.number,
            "epoch": epoch,
            "metrics": {**_means("train", train), **_means("val", evals)},
            "seconds": round(seconds, 6),
        }

    def end_record(self, status: TrialStatus, reason: str | None) -> Record:
        """The journal record of the trial's end."""
        failure = None if status is TrialStatus.FINISHED else self.failure
        error = reason
        if failure is not None:
            error = failure.message
            if status is TrialStatus.FAILED and reason is not None:
                error = f"{failure.message} ({reason})"
        return {
            "type": "trial_end",
            "trial": self.number,
            "status": str(status),
            "error": error,
            "traceback": None if failure is None else failure.traceback,
        }


def _means(prefix: str, parts: list[Sums]) -> Metrics:
    """Row-weighted means over shards, added up in shard order."""
    totals: dict[str, tuple[float, int]] = {}
    for sums in parts:
        for name, (total, rows) in sums.items():
            before = totals.get(name, (0.0, 0))
            totals[name] = (before[0] + total, before[1] + rows)
    return {f"{prefix}_{name}": total / rows for name, (total, rows) in totals.items()}
