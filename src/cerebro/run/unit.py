"""What the driver knows of a unit beyond what is durable, and the records it makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from cerebro.backend.base import Done, Failure, FailureKind
from cerebro.run.aggregation import Aggregator
from cerebro.train.codec import encode
from cerebro.train.visit import Batches, Stacking, Sums, VisitCall
from cerebro.types import Json, Metrics, Params, TrialStatus, stack_unit

Record = dict[str, Json]

#: How often a unit loses its state, while no more of it becomes durable, until it is given up.
LOSSES = 10

_NO_BATCHES = Aggregator(None)


@dataclass(slots=True)
class LiveUnit:
    """A trial, or a stack of trials, that the driver is working on."""

    id: int
    #: By trial, in the order of a stack's members.
    params: dict[int, Params]
    #: How they are trained as one; None for a trial alone.
    stacking: Stacking | None = None
    #: Trials that have not ended.
    alive: dict[int, None] = field(default_factory=dict)
    #: Sums of training visits, by visit and trial.
    train: dict[int, dict[int, Sums]] = field(default_factory=dict)
    #: Sums of evaluations, by (epoch, validation shard) and trial.
    evals: dict[tuple[int, int], dict[int, Sums]] = field(default_factory=dict)
    #: In place of sums, metrics of single batches: by visit, and by (epoch, validation shard).
    train_batches: dict[int, Batches] = field(default_factory=dict)
    eval_batches: dict[tuple[int, int], Batches] = field(default_factory=dict)
    #: Trials for which the epoch to evaluate is recorded already.
    recorded: frozenset[int] = frozenset()
    #: Records of visits, and of trials that ended in them, that wait for the epoch's checkpoint.
    waiting: list[Record] = field(default_factory=list)
    #: A checkpoint of it is being written.
    is_saving: bool = False
    #: Commits of it that are not durable yet.
    commits: int = 0
    #: A visit that is done before the one before it is durable, and when.
    held: tuple[Done, float] | None = None
    #: In training and evaluation loops, this epoch; the share of one trial.
    seconds: float = 0.0
    #: When its last visit was done, in seconds since the driver began.
    ended_s: float = 0.0
    #: What went wrong last.
    failure: Failure | None = None
    #: Why its trials shall go on alone.
    given_up: str | None = None
    #: It shall leave the plan as soon as nothing of it is under way.
    is_leaving: bool = False
    #: Why it goes back to its last checkpoint, as soon as nothing of it is under way; how often it
    #: was to, and visits that are forgotten by that.
    lost: str | None = None
    rewinds: int = 0
    forgotten: int = 0
    #: Losses of its state, and of that of a visit which was durable, since more became durable
    #: than ever before: so many visits.
    losses: Counter[tuple[int, int, bool] | None] = field(default_factory=Counter)
    reached: int = 0
    #: The number of a first attempt since it last went back, and of one that was not made yet.
    first_attempt: int = 0
    next_attempt: int = 0
    #: The params of the trial whose state it begins with, and the visits behind that state.
    origin: tuple[Params, int] | None = None
    #: Rows that its batches are split into.
    micro_batch: int | None = None
    #: The visit that last ran out of memory: epoch, step, and whether it trains.
    cramped: tuple[int, int, bool] | None = None
    #: Which part of the train shards is held out.
    fold: int | None = None

    @property
    def is_stack(self) -> bool:
        return self.stacking is not None

    def succeed(self, before: LiveUnit) -> None:
        """It was in the plan before, and has left it since."""
        self.rewinds, self.losses, self.reached = before.rewinds, before.losses, before.reached
        self.first_attempt, self.next_attempt = before.first_attempt, before.next_attempt

    def lose_state(self, call: VisitCall | None) -> bool:
        """Its state is lost, or that of a visit which is durable; whether that is so too often."""
        visit = None if call is None else (call.epoch, call.step, call.is_training)
        self.losses[visit] += 1
        return self.losses[visit] >= LOSSES

    def go_back(self, reason: str) -> None:
        """What is not durable of it is of no use."""
        self.lost = reason
        self.forgotten += self.num_waiting
        self.waiting = []

    def reach(self, visits: int) -> None:
        """So many visits are durable."""
        if visits > self.reached:
            self.reached = visits
            self.losses.clear()

    def attempt_at(self, attempt: int) -> int:
        """The number of an attempt at a visit, apart from all before it went back."""
        attempt += self.first_attempt
        self.next_attempt = max(self.next_attempt, attempt + 1)
        return attempt

    def lacks_memory(self, call: VisitCall) -> bool:
        """A visit ran out of memory; whether it did before, so that it was alone now."""
        visit = (call.epoch, call.step, call.is_training)
        was_alone, self.cramped = self.cramped == visit, visit
        return was_alone

    def origin_at(self, visits: int) -> Params | None:
        """The params behind the state that the visit after so many begins with, if another's."""
        if self.origin is None or self.origin[1] != visits:
            return None
        return None if self.origin[0] == self.params[self.id] else self.origin[0]

    @property
    def is_abandoned(self) -> bool:
        """Whether answers of its visits are of no use any more."""
        return self.given_up is not None or self.lost is not None or not self.alive

    @property
    def num_waiting(self) -> int:
        """Visits that wait for their epoch's checkpoint."""
        return sum(record["type"] == "visit" for record in self.waiting)

    def add(self, event: Done, ended: float = 0.0) -> dict[int, str]:
        """Take a visit's sums; gives the trials that have diverged in it, and how."""
        call, report = event.call, event.report
        self.ended_s = ended
        sums: dict[int, Sums] = {}
        diverged: dict[int, str] = {}
        for trial, member in zip(call.trials, report.members, strict=True):
            if trial not in self.alive:
                continue
            if member.diverged is None:
                sums[trial] = member.sums
            else:
                diverged[trial] = member.diverged
        batches = report.members[0].batches or {}
        if call.is_training:
            self.train[call.visits - 1] = sums
            self.train_batches[call.visits - 1] = batches
        else:
            self.evals[call.epoch, call.step] = sums
            self.eval_batches[call.epoch, call.step] = batches
        self.seconds += (report.compute_s + report.comm_s) / len(call.trials)
        return diverged

    def lose(self, message: str) -> None:
        """Its worker is gone."""
        self.failure = Failure(
            kind=FailureKind.ERROR,
            message=message,
            traceback="",
            signature=message,
            error="WorkerLost",
        )

    def visit_record(
        self, event: Done, started: float, ended: float, diverged: dict[int, str]
    ) -> Record:
        """The journal record of a training visit."""
        call, report = event.call, event.report
        sums = self.train[call.visits - 1]
        record: Record = {
            "type": "visit",
            **({"stack": stack_unit(self.id)} if self.is_stack else {"trial": self.id}),
            "epoch": call.epoch,
            "step": call.step,
            "shard": call.shard,
            "attempt": call.attempt,
            "worker": event.worker,
            **({"host": event.host} if event.host else {}),
            "start_s": round(started, 6),
            "end_s": round(ended, 6),
            "rows": report.rows,
        }
        if not self.is_stack:
            record["sums"] = _to_json(sums.get(self.id, {}))
            if report.members[0].batches:
                pairs = {name: list(pair) for name, pair in report.members[0].batches.items()}
                record["batches"] = encode(pairs, "metrics")
            return record
        record["trials"] = list(call.trials)
        record["members"] = [_to_json(sums.get(trial, {})) for trial in call.trials]
        if diverged:
            record["diverged"] = {str(trial): why for trial, why in diverged.items()}
        return record

    def epoch_records(
        self, epoch: int, train_shards: int, val_shards: int, aggregator: Aggregator = _NO_BATCHES
    ) -> list[Record]:
        """The journal record of an epoch whose visits are all done; none if nobody is left."""
        first = epoch * train_shards
        visits, judged = range(first, first + train_shards), range(val_shards)
        train = [self.train.pop(visit) for visit in visits]
        evals = [self.evals.pop((epoch, shard)) for shard in judged]
        train_batches = [self.train_batches.pop(visit, {}) for visit in visits]
        eval_batches = [self.eval_batches.pop((epoch, shard), {}) for shard in judged]
        seconds, self.seconds = self.seconds, 0.0
        skipped, self.recorded = self.recorded, frozenset()
        metrics: dict[int, Json] = {
            trial: {
                **_means("train", (sums[trial] for sums in train)),
                **_means("val", (sums[trial] for sums in evals)),
                **aggregator("train", self.params[trial], train_batches),
                **aggregator("val", self.params[trial], eval_batches),
            }
            for trial in self.alive
            if trial not in skipped
        }
        record: Record = {"type": "epoch", "epoch": epoch, "seconds": round(seconds, 6)}
        record["end_s"] = round(self.ended_s, 6)
        if not self.is_stack:
            return [{**record, "trial": n, "metrics": found} for n, found in metrics.items()]
        # One record: the trials of a stack reach the end of an epoch together, or not at all.
        record |= {"stack": stack_unit(self.id), "trials": list(metrics)}
        return [{**record, "metrics": list(metrics.values())}] if metrics else []

    def drop_waiting(self) -> list[Record]:
        """Visits that wait are never saved: the records of trials that ended in them."""
        waiting, self.waiting = self.waiting, []
        return [record for record in waiting if record["type"] == "trial_end"]

    def end(self, status: TrialStatus, reason: str | None) -> list[Record]:
        """All trials that are left end like this: their journal records."""
        failure = None if status is TrialStatus.FINISHED else self.failure
        error = reason
        if failure is not None:
            error = failure.message
            if status is not TrialStatus.DIVERGED and reason is not None:
                error = f"{failure.message} ({reason})"
        traceback = None if failure is None else failure.traceback
        ended, self.alive = self.alive, {}
        return [_end_record(trial, status, error, traceback) for trial in ended]

    def leave(self, status: TrialStatus, reasons: Mapping[int, str | None]) -> list[Record]:
        """These trials end, the others go on: their journal records."""
        self.alive = {trial: None for trial in self.alive if trial not in reasons}
        return [_end_record(trial, status, why, None) for trial, why in reasons.items()]


def _end_record(
    trial: int, status: TrialStatus, error: str | None, traceback: str | None
) -> Record:
    return {
        "type": "trial_end",
        "trial": trial,
        "status": str(status),
        "error": error,
        "traceback": traceback,
    }


def _to_json(sums: Sums) -> Json:
    return {name: list(pair) for name, pair in sums.items()}


def _means(prefix: str, parts: Iterable[Sums]) -> Metrics:
    """Row-weighted means over shards, added up in shard order."""
    totals: dict[str, tuple[float, int]] = {}
    for sums in parts:
        for name, (total, rows) in sums.items():
            before = totals.get(name, (0.0, 0))
            totals[name] = (before[0] + total, before[1] + rows)
    return {f"{prefix}_{name}": total / rows for name, (total, rows) in totals.items()}
