"""The driver: events from workers to the plan, its instructions to workers, results to disk."""

from __future__ import annotations

import logging
import sys
import threading
from collections.abc import Callable

from cerebro import mop
from cerebro.backend.base import (
    Backend,
    Done,
    Failed,
    FailureKind,
    Joined,
    Lost,
    Posted,
    Setup,
    StateRef,
    Surveyed,
    WorkerInfo,
)
from cerebro.errors import (
    CheckpointCorruptError,
    ShardCorruptError,
    UsageError,
)
from cerebro.run.checks import check_metric
from cerebro.run.committer import Commit, CommitFailed, Committed
from cerebro.run.dispatch import Dispatcher
from cerebro.run.entry import Entry, entries, trial_entry
from cerebro.run.ledger import Ledger
from cerebro.run.prelude import Prelude
from cerebro.run.recovery import OpenRun
from cerebro.run.reporter import Reporter
from cerebro.run.signals import GraceOver, StopRequested, StopSignals, interrupted
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.states import States
from cerebro.run.surveyor import Surveyor
from cerebro.run.unit import LiveUnit, Record
from cerebro.run.verifier import ShardDamaged, Verifier
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.track import records
from cerebro.track.efficiency import Summary
from cerebro.train.visit import SurveyCall, VisitCall
from cerebro.types import TrialStatus, unit_id

#: How long visits in flight may go on after a first Ctrl-C.
GRACE_S = 30.0
SWITCH_S = 0.0005

logger = logging.getLogger("cerebro.run")


class Driver:
    """Carries one run to its end, or to where it is stopped.

    Args:
        ready: Called with the first worker's description before anything is trained; it writes
            run.json of a new run and refuses a resume that would give other results.
        track: Receives the run's records.
    """

    def __init__(
        self,
        spec: RunSpec,
        run: OpenRun,
        backend: Backend,
        *,
        workers: int,
        threaded: bool,
        memory_bytes: int | None,
        device: str = "auto",
        ready: Callable[[WorkerInfo], None],
        track: Callable[[records.Record], None],
    ) -> None:
        self._spec = spec
        self._run = run
        self._backend = backend
        self._workers = workers
        self._threaded = threaded
        self._ready = ready
        self._is_ready = False
        lag = None if spec.checkpoint is Checkpointing.OFF else 1
        self._planner = mop.Planner(spec.train_shards, spec.val_shards, max_lag=lag)
        self._states = States(backend.release, memory_bytes)
        self._units: dict[int, LiveUnit] = {}
        self._reporter = Reporter(track, workers)
        self._prelude = Prelude(
            run, Surveyor(spec, run, workers, device), backend.submit, self._begin
        )
        self._ledger = Ledger(spec, run, backend, self._states, self._reporter)
        has_probed = any(
            spec.metric in epoch.metrics for t in run.history.trials.values() for epoch in t.epochs
        )
        self._dispatcher = Dispatcher(
            spec, backend, self._states, self._reporter, probe=not has_probed
        )
        self._stopping: int | None = None
        #: Visits in flight are not waited for any more.
        self._is_abandoned = False
        self._timer: threading.Timer | None = None
        self._handlers: dict[type, Callable[..., None]] = {
            Joined: self._joined,
            Surveyed: self._surveyed,
            Done: self._done,
            Failed: self._failed,
            Lost: self._lost,
            Posted: self._posted,
        }

    def execute(self, setup: Setup) -> Summary:
        """Run until every trial is finished, stopped or failed."""
        switch_s = sys.getswitchinterval()
        with StopSignals(lambda number: self._backend.post(StopRequested(number))) as signals:
            try:
                # Workers wait for this thread: those beside it must not keep it waiting for 5 ms.
                sys.setswitchinterval(SWITCH_S)
                if self._threaded:
                    self._dispatcher.verifier = Verifier(self._spec.data, self._backend.post)
                self._backend.start(setup, self._workers)
                while not self._is_over():
                    for event in self._backend.events():
                        self._handlers[type(event)](event)
            finally:
                signals.ignore()
                sys.setswitchinterval(switch_s)
                if self._timer is not None:
                    self._timer.cancel()
                self._ledger.close()
                if self._dispatcher.verifier is not None:
                    self._dispatcher.verifier.close()
                self._backend.stop()
        # Before the run begins the planner knows no trial and calls that finished.
        if self._stopping is not None and not (self._ledger.is_open and self._planner.finished):
            saved = "what was trained is saved, the same command resumes it."
            trained = self._run.history.has_trained
            told = f"stopped; {saved}" if trained else "stopped; nothing was trained yet."
            raise interrupted(self._stopping, told)
        return self._reporter.summary()

    def _is_over(self) -> bool:
        if not self._ledger.is_open:
            return self._stopping is not None
        if self._ledger.pending:
            return False
        if self._stopping is not None:
            return self._is_abandoned or not self._dispatcher
        return self._planner.finished and not self._dispatcher

    # Before the first visit

    def _joined(self, event: Joined) -> None:
        info = event.info
        if not self._is_ready:
            self._is_ready = True
            self._ready(info)
        self._reporter.worker(info.worker, alive=True, cause=None)
        if self._ledger.is_open:
            self._act(self._planner.handle(mop.WorkerJoined(info.worker, self._home(info))))
        else:
            self._prelude.joined(info)

    def _home(self, info: WorkerInfo) -> frozenset[int]:
        """Shards that a worker should keep to; on the CPU all workers share one copy of all."""
        if info.device == "cpu":
            return frozenset()
        return frozenset(range(info.worker, self._spec.train_shards, self._workers))

    def _surveyed(self, event: Surveyed) -> None:
        self._prelude.surveyed(event)

    def _begin(self) -> None:
        self._ledger.open(threaded=self._threaded)
        for entry in entries(self._run.history, self._spec):
            self._add(entry)
        for info in self._prelude.workers.values():
            self._act(self._planner.handle(mop.WorkerJoined(info.worker, self._home(info))))

    def _add(self, entry: Entry) -> None:
        live = self._units[entry.live.id] = entry.live
        if entry.checkpoint is not None:
            self._states.restore(live.id, entry.checkpoint)
        self._ledger.enter(live)
        self._act(self._planner.handle(entry.added))
        if entry.is_finished:
            self._end(live, TrialStatus.FINISHED, None)

    # Answers

    def _done(self, event: Done) -> None:
        live = self._units[event.call.unit]
        now = self._reporter.answered(event.worker)
        if live.given_up is not None:
            self._discard(event, live)
        elif live.is_saving and self._ledger.is_due(event.call):
            # At most one visit of a unit is done and not durable: this one is, in a moment.
            live.held = (event, now)
        else:
            self._take(event, now)

    def _take(self, event: Done, now: float, *, after_save: bool = False) -> None:
        call, unit = event.call, event.call.unit
        source, started = self._dispatcher.take(event.worker)
        live = self._units[unit]
        if call.probe:
            check_metric(self._spec, event.report.metric_names)
            self._dispatcher.is_probing = False
        diverged = live.add(event)
        ended = self._reduce(live, TrialStatus.DIVERGED, diverged) if diverged else []
        if event.state is not None:
            self._states.replace(unit, event.state)
            self._states.hold(event.state)
        self._states.drop(source)
        instructions = self._planner.handle(_visit_done(event, now - started))
        # The next visit starts before this one is written out.
        self._submit(instructions, after_save=after_save)
        if not live.alive and diverged:
            self._close(live, event.state, ended)
        elif event.state is not None:
            live.waiting += [live.visit_record(event, started, now, diverged), *ended]
            if self._ledger.put_visit(live, call, event.state):
                self._act(self._planner.handle(mop.Durable(unit, call.visits)))
        elif ended:
            self._ledger.put(Commit(ended), live)
        self._reporter.finished(event, started, now, live.alive)
        self._conclude(instructions)

    def _discard(self, event: Done, live: LiveUnit) -> None:
        """A visit of a stack that was given up meanwhile: its trials do it again, alone."""
        self._states.drop(self._dispatcher.take(event.worker)[0])
        self._act(self._planner.handle(_visit_done(event, 0.0)))
        self._dissolve(live)

    def _reduce(self, live: LiveUnit, status: TrialStatus, reasons: dict[int, str]) -> list[Record]:
        """These trials leave, at once as far as results go; their journal records."""
        ended = live.leave(status, reasons)
        self._planner.handle(mop.UnitReduced(live.id, tuple(live.alive)))
        return ended

    def _close(self, live: LiveUnit, state: StateRef | None, ended: list[Record]) -> None:
        """No trial is left in a unit: what it was about to save is of no use."""
        self._states.drop(state)
        self._states.forget(live.id)
        self._ledger.put(Commit([*live.drop_waiting(), *ended]), live)

    def _failed(self, event: Failed) -> None:
        failure, call = event.failure, event.call
        if failure.kind is FailureKind.FATAL:
            raise ShardCorruptError(failure.message)
        if isinstance(call, SurveyCall):
            is_final = failure.kind is FailureKind.USAGE
            self._prelude.failed(call, failure.message, is_final=is_final)
            return
        self._states.drop(self._dispatcher.take(event.worker)[0])
        if failure.kind is FailureKind.CORRUPT:
            raise CheckpointCorruptError(failure.message)
        if call.probe and self._dispatcher.is_probing and failure.kind is FailureKind.USAGE:
            raise UsageError(failure.message)
        live = self._units[call.unit]
        if live.given_up is None:
            live.failure = failure
        diverged = failure.kind is FailureKind.DIVERGED
        self._act(
            self._planner.handle(
                mop.VisitFailed(
                    *(call.unit, call.epoch, call.step, _phase(call), call.attempt, event.worker),
                    mop.Cause.DIVERGED if diverged else mop.Cause.ERROR,
                    failure.message if diverged else failure.signature,
                )
            )
        )
        self._dissolve(live)

    def _lost(self, event: Lost) -> None:
        for live in self._units.values():
            if live.held is not None and live.held[0].worker == event.worker:
                self._take_held(live)
        message = f"worker {event.worker} {event.cause}"
        if isinstance(event.call, VisitCall):
            self._states.drop(self._dispatcher.take(event.worker)[0])
            if self._units[event.call.unit].given_up is None:
                self._units[event.call.unit].lose(message)
        self._reporter.worker(event.worker, alive=False, cause=event.cause)
        self._prelude.lost(event.worker)
        if isinstance(event.call, SurveyCall):
            self._prelude.failed(event.call, message)
        self._act(self._planner.handle(mop.WorkerLost(event.worker)))
        if isinstance(event.call, VisitCall):
            self._dissolve(self._units[event.call.unit])

    def _posted(self, event: Posted) -> None:
        payload = event.payload
        if isinstance(payload, Committed):
            for commit in payload.commits:
                self._committed(commit)
        elif isinstance(payload, CommitFailed | ShardDamaged):
            raise payload.error
        elif isinstance(payload, StopRequested):
            self._stopping = payload.number
            self._reporter.stopping(len(self._dispatcher))
            self._planner.handle(mop.Drain())
            self._timer = threading.Timer(GRACE_S, lambda: self._backend.post(GraceOver()))
            self._timer.daemon = True
            self._timer.start()
        elif isinstance(payload, GraceOver):
            self._is_abandoned = True

    def _committed(self, commit: Commit) -> None:
        live = self._ledger.settle(commit)
        if live is None:
            return
        if commit.visits:
            if commit.state is not None:
                ref = CheckpointRef.from_json(commit.visit["checkpoint"])
                self._states.saved(live.id, commit.state, ref)
                self._states.drop(commit.state)
            live.is_saving = False
            visits = commit.visits + live.num_waiting
            instructions = self._planner.handle(mop.Durable(live.id, visits))
            self._submit(instructions, after_save=True)
            self._conclude(instructions)
            self._take_held(live)
        self._dissolve(live)

    def _take_held(self, live: LiveUnit) -> None:
        if live.held is not None:
            (event, now), live.held = live.held, None
            self._take(event, now, after_save=True)

    # Instructions

    def _act(self, instructions: list[mop.Instruction]) -> None:
        self._submit(instructions)
        self._conclude(instructions)

    def _submit(self, instructions: list[mop.Instruction], *, after_save: bool = False) -> None:
        for instruction in instructions:
            if isinstance(instruction, mop.Start):
                live = self._units[instruction.visit.unit]
                self._dispatcher.start(instruction, live, after_save=after_save)

    def _conclude(self, instructions: list[mop.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, mop.EpochEnded):
                live = self._units[instruction.unit]
                shards = self._spec.train_shards, self._spec.val_shards
                self._ledger.put(Commit(live.epoch_records(instruction.epoch, *shards)), live)
            elif isinstance(instruction, mop.UnitFinished):
                self._end(self._units[instruction.unit], TrialStatus.FINISHED, None)
            elif isinstance(instruction, mop.UnitFailed):
                self._give_up(self._units[instruction.unit], instruction)

    def _give_up(self, live: LiveUnit, failed: mop.UnitFailed) -> None:
        if failed.diverged:
            self._end(live, TrialStatus.DIVERGED, failed.reason)
        elif live.is_stack:
            # One bad member must not take the others down.
            live.given_up = failed.reason
            self._dissolve(live)
        else:
            self._end(live, TrialStatus.FAILED, failed.reason)

    def _dissolve(self, live: LiveUnit) -> None:
        """Let the trials of a stack that was given up go on alone, once nothing is under way."""
        if live.given_up is None or live.commits or self._dispatcher.is_busy(live.id):
            return
        stack = self._run.history.stacks[live.id]
        if not stack.is_dissolved:
            why = live.failure.message if live.failure else live.given_up
            alone = f"{len(live.alive)} trials go on alone"
            logger.warning("stack %s is dissolved, %s: %s", unit_id(live.id), alone, why)
            self._ledger.dissolve(live)
            return
        live.given_up = None
        self._states.forget(live.id)
        for trial in (self._run.history.trials[number] for number in stack.trials):
            if not trial.status.is_final:
                self._add(trial_entry(trial, self._spec))

    def _end(self, live: LiveUnit, status: TrialStatus, reason: str | None) -> None:
        """All that is left of a unit ends."""
        self._states.forget(live.id)
        self._ledger.put(Commit([*live.drop_waiting(), *live.end(status, reason)]), live)


def _visit_done(event: Done, seconds: float) -> mop.VisitDone:
    call = event.call
    return mop.VisitDone(
        *(call.unit, call.epoch, call.step, _phase(call), call.attempt, event.worker), seconds
    )


def _phase(call: VisitCall) -> mop.Phase:
    return mop.Phase.TRAIN if call.is_training else mop.Phase.EVAL
