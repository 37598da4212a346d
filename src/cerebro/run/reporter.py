"""Turns what the driver does into records for trackers, and adds up the workers' time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Container, Mapping
from typing import cast

from cerebro.backend.base import Done
from cerebro.run.history import RunHistory, TrialHistory
from cerebro.run.ranking import is_person
from cerebro.track import records
from cerebro.track.efficiency import Efficiency, Summary
from cerebro.train.visit import MemberReport, VisitCall
from cerebro.types import Json, TrialStatus

logger = logging.getLogger("cerebro.run")


class Reporter:
    """Knows the run's clock, which starts when it is made."""

    def __init__(self, track: Callable[[records.Record], None], workers: int) -> None:
        self._track = track
        self._efficiency = Efficiency(workers)
        self._origin = time.perf_counter()
        #: Of each worker: when it last answered; how long it then stood idle for a checkpoint.
        self._answered: dict[int, float] = {}
        self._idle_for_save: dict[int, float] = {}

    def now(self) -> float:
        """Seconds since the start."""
        return time.perf_counter() - self._origin

    def summary(self) -> Summary:
        return self._efficiency.summary()

    def stopping(self, visits: int) -> None:
        """The run was asked to stop and waits for so many visits."""
        if visits:
            logger.warning("stopping after the visits in flight; a second Ctrl-C stops at once.")

    def started(
        self, call: VisitCall, worker: int, alive: Container[int], *, after_save: bool
    ) -> None:
        """A visit was handed to a worker, perhaps because a checkpoint had become durable.

        Of a stack, the trials that have ended are in it until the next epoch; nobody is told.
        """
        now = self.now()
        if after_save and worker in self._answered:
            self._idle_for_save[worker] = now - self._answered[worker]
        self._track(
            records.VisitStarted(
                trials=tuple([trial for trial in call.trials if trial in alive]),
                epoch=call.epoch,
                step=call.step,
                phase=_phase(call),
                shard=call.shard,
                worker=worker,
                time_s=now,
            )
        )

    def answered(self, worker: int) -> float:
        """A worker is through with its visit, now."""
        now = self._answered[worker] = self.now()
        return now

    def finished(self, event: Done, started: float, ended: float, alive: Container[int]) -> None:
        """A visit was answered; these trials have not ended, in it or before."""
        call, report = event.call, event.report
        told = [pair for pair in zip(call.trials, report.members, strict=True) if pair[0] in alive]
        visit = records.VisitFinished(
            trials=tuple([trial for trial, _ in told]),
            epoch=call.epoch,
            step=call.step,
            phase=_phase(call),
            shard=call.shard,
            worker=event.worker,
            start_s=started,
            end_s=ended,
            compute_s=report.compute_s - report.load_s,
            load_s=report.load_s,
            data_s=report.data_s,
            hop_s=report.hop_s,
            comm_s=report.comm_s,
            checkpoint_s=self._idle_for_save.pop(event.worker, 0.0),
            rows=report.rows,
            members=tuple([_member(member) for _, member in told]),
            graph=report.graph,
        )
        self._efficiency.visit(visit)
        if told:
            self._track(visit)

    def worker(self, worker: int, *, alive: bool, cause: str | None) -> None:
        """A worker joined or was lost."""
        now = self.now()
        self._efficiency.worker(worker, alive=alive, time_s=now)
        self._track(records.WorkerChanged(worker=worker, alive=alive, cause=cause, time_s=now))

    def durable(self, record: Mapping[str, Json], history: RunHistory) -> None:
        """A journal record is durable and part of the history."""
        kind = record["type"]
        if kind == "trial":
            trial = history.trials[cast(int, record["trial"])]
            self._track(trial_added(trial, history.steps))
            if record.get("replaces") is not None:
                self._changed(history.trials[cast(int, record["replaces"])])
        elif kind == "trial_end":
            self._changed(history.trials[cast(int, record["trial"])])
        elif kind == "epoch":
            trials = [record["trial"]] if "trial" in record else record["trials"]
            for number in cast("list[int]", trials):
                self._evaluated(history.trials[number], cast(int, record["epoch"]))
        elif kind == "decision":
            for number in cast("list[int]", record.get("trials", list(history.trials))):
                trial = history.trials[number]
                if record["what"] != "halt":
                    by = str(record["by"])
                    self._changed(trial, by if is_person(by) else None)
                elif trial.error == record["reason"]:
                    # Those that had ended before were told of.
                    self._changed(trial)

    def _evaluated(self, trial: TrialHistory, number: int) -> None:
        epoch = trial.epochs[-1]
        self._track(
            records.EpochFinished(
                trial=trial.number,
                epoch=number,
                metrics=epoch.metrics,
                seconds=epoch.seconds,
                durable_s=self.now(),
            )
        )
        if trial.status is TrialStatus.PAUSED:
            self._changed(trial)

    def _changed(self, trial: TrialHistory, by: str | None = None) -> None:
        self._track(trial_changed(trial, by=by))


def trial_added(trial: TrialHistory, steps: int) -> records.TrialAdded:
    """What trackers learn of a new trial; an epoch has so many visits."""
    return records.TrialAdded(
        trial=trial.number,
        params=trial.params,
        proposal=trial.proposal,
        repeat=trial.repeat,
        parent=trial.parent,
        parent_epochs=trial.parent_visits // steps,
    )


def trial_changed(
    trial: TrialHistory, *, by: str | None = None, replayed: bool = False
) -> records.TrialFinished | records.TrialChanged:
    """What trackers learn of a trial that ended, waits or goes on."""
    number, status = trial.number, trial.status
    if status.is_final:
        return records.TrialFinished(
            trial=number, status=status, error=trial.error, replayed=replayed, by=by
        )
    is_held = trial.is_held
    return records.TrialChanged(
        trial=number, status=status, is_held=is_held, replayed=replayed, by=by
    )


def _member(report: MemberReport) -> records.MemberVisit:
    means = {name: total / rows for name, (total, rows) in report.sums.items()}
    return records.MemberVisit(report.losses, report.first_step, means)


def _phase(call: VisitCall) -> str:
    return "train" if call.is_training else "eval"
