"""The driver: events from workers to the plan, its instructions to workers, results to disk."""

from __future__ import annotations

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
    Source,
    StateRef,
    WorkerInfo,
)
from cerebro.errors import (
    CerebroError,
    CheckpointCorruptError,
    ShardCorruptError,
    UsageError,
)
from cerebro.run.checks import check_metric, check_space
from cerebro.run.committer import Commit, CommitFailed, Committed, Committer
from cerebro.run.history import TrialHistory
from cerebro.run.recovery import OpenRun
from cerebro.run.reporter import Reporter
from cerebro.run.signals import GraceOver, StopRequested, StopSignals, interrupted
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.states import States
from cerebro.run.trial import LiveTrial
from cerebro.run.verifier import ShardDamaged, Verifier
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.track import records
from cerebro.track.efficiency import Summary
from cerebro.train.visit import VisitCall
from cerebro.types import Split, TrialStatus

#: How long visits in flight may go on after a first Ctrl-C.
GRACE_S = 30.0
SWITCH_S = 0.0005


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
        ready: Callable[[WorkerInfo], None],
        track: Callable[[records.Record], None],
    ) -> None:
        self._spec = spec
        self._run = run
        self._backend = backend
        self._workers = workers
        self._threaded = threaded
        self._ready = ready
        lag = None if spec.checkpoint is Checkpointing.OFF else 1
        self._planner = mop.Planner(spec.train_shards, spec.val_shards, max_lag=lag)
        self._states = States(backend.release, memory_bytes)
        self._trials: dict[int, LiveTrial] = {}
        self._in_flight: dict[int, tuple[Source, float]] = {}
        self._committer: Committer | None = None
        self._commits = 0
        self._verifier: Verifier | None = None
        self._reporter = Reporter(track, workers)
        self._stopping: int | None = None
        #: Visits in flight are not waited for any more.
        self._is_abandoned = False
        self._timer: threading.Timer | None = None
        self._has_probed = any(
            spec.metric in epoch.metrics for t in run.history.trials.values() for epoch in t.epochs
        )
        self._has_checked_space = False
        self._handlers: dict[type, Callable[..., None]] = {
            Joined: self._joined,
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
                    self._verifier = Verifier(self._spec.data, self._backend.post)
                self._backend.start(setup, self._workers)
                while not self._is_over():
                    for event in self._backend.events():
                        self._handlers[type(event)](event)
            finally:
                signals.ignore()
                sys.setswitchinterval(switch_s)
                if self._timer is not None:
                    self._timer.cancel()
                for helper in (self._committer, self._verifier):
                    if helper is not None:
                        helper.close()
                self._backend.stop()
        # Before the run begins the planner knows no trial and calls that finished.
        if self._stopping is not None and not (self._committer and self._planner.finished):
            saved = "what was trained is saved, the same command resumes it."
            trained = self._run.history.has_trained
            told = f"stopped; {saved}" if trained else "stopped; nothing was trained yet."
            raise interrupted(self._stopping, told)
        return self._reporter.summary()

    def _is_over(self) -> bool:
        if self._committer is None:
            return self._stopping is not None
        if self._commits:
            return False
        if self._stopping is not None:
            return self._is_abandoned or not self._in_flight
        return self._planner.finished and not self._in_flight

    # Events

    def _joined(self, event: Joined) -> None:
        if self._committer is None:
            self._begin(event.info)
        self._reporter.worker(event.info.worker, alive=True, cause=None)
        self._act(self._planner.handle(mop.WorkerJoined(event.info.worker, self._home(event.info))))

    def _home(self, info: WorkerInfo) -> frozenset[int]:
        """Shards that a worker should keep to; on the CPU all workers share one copy of all."""
        if info.device == "cpu":
            return frozenset()
        return frozenset(range(info.worker, self._spec.train_shards, self._workers))

    def _begin(self, info: WorkerInfo) -> None:
        self._ready(info)
        parents = {
            trial.number: trial.last_checkpoint.sha256
            for trial in self._run.history.trials.values()
            if trial.last_checkpoint is not None
        }
        self._committer = Committer(
            self._run.store,
            self._run.opened,
            self._backend.save,
            self._backend.post,
            parents,
            threaded=self._threaded,
        )
        for trial in self._run.history.trials.values():
            self._add(trial)

    def _add(self, trial: TrialHistory) -> None:
        spec, steps = self._spec, self._spec.train_shards
        live = self._trials[trial.number] = LiveTrial(trial.number, trial.params)
        live.train.update(trial.sums)
        if trial.status.is_final:
            return
        if trial.last_checkpoint is not None:
            self._states.restore(trial.number, trial.last_checkpoint)
        unit = mop.Unit(trial.number, (trial.number,), trial.start, spec.epochs)
        epoch, step = divmod(trial.visits, steps)
        if epoch > spec.epochs:
            # Forced to fewer epochs than it has done.
            epoch, step = spec.epochs, 0
        elif step == 0 and epoch > len(trial.epochs):
            # The epoch's training is durable, its evaluation is not.
            epoch, step = epoch - 1, steps
        self._act(self._planner.handle(mop.UnitAdded(unit, epoch, step)))
        if epoch == spec.epochs:
            self._end_trial(trial.number, TrialStatus.FINISHED, None)

    def _done(self, event: Done) -> None:
        live = self._trials[event.call.trials[0]]
        now = self._reporter.answered(event.worker)
        if live.is_saving and self._is_due(event.call):
            # At most one visit of a trial is done and not durable: this one is, in a moment.
            live.held = (event, now)
        else:
            self._take(event, now)

    def _take(self, event: Done, now: float, *, after_save: bool = False) -> None:
        call, trial = event.call, event.call.trials[0]
        source, started = self._in_flight.pop(event.worker)
        live = self._trials[trial]
        if call.probe:
            check_metric(self._spec, event.report.metric_names)
            self._has_probed = True
        live.add(event)
        if event.state is not None:
            self._states.replace(trial, event.state)
            self._states.hold(event.state)
        self._states.drop(source)
        phase = mop.Phase.TRAIN if call.is_training else mop.Phase.EVAL
        done = mop.VisitDone(
            call.unit, call.epoch, call.step, phase, call.attempt, event.worker, now - started
        )
        instructions = self._planner.handle(done)
        # The next visit starts before this one is written out.
        self._submit(instructions, after_save=after_save)
        if event.state is not None:
            self._commit_visit(event, event.state, started, now)
        self._reporter.finished(event, started, now)
        self._conclude(instructions)

    def _failed(self, event: Failed) -> None:
        failure, call = event.failure, event.call
        source, _ = self._in_flight.pop(event.worker)
        self._states.drop(source)
        if failure.kind is FailureKind.FATAL:
            raise ShardCorruptError(failure.message)
        if failure.kind is FailureKind.CORRUPT:
            raise CheckpointCorruptError(failure.message)
        if call.probe and not self._has_probed and failure.kind is FailureKind.USAGE:
            raise UsageError(failure.message)
        self._trials[call.trials[0]].failure = failure
        phase = mop.Phase.TRAIN if call.is_training else mop.Phase.EVAL
        diverged = failure.kind is FailureKind.DIVERGED
        self._act(
            self._planner.handle(
                mop.VisitFailed(
                    *(call.unit, call.epoch, call.step, phase, call.attempt, event.worker),
                    mop.Cause.DIVERGED if diverged else mop.Cause.ERROR,
                    failure.message if diverged else failure.signature,
                )
            )
        )

    def _lost(self, event: Lost) -> None:
        for live in self._trials.values():
            if live.held is not None and live.held[0].worker == event.worker:
                self._take_held(live)
        if event.call is not None:
            source, _ = self._in_flight.pop(event.worker)
            self._states.drop(source)
            self._trials[event.call.trials[0]].lose(f"worker {event.worker} {event.cause}")
        self._reporter.worker(event.worker, alive=False, cause=event.cause)
        self._act(self._planner.handle(mop.WorkerLost(event.worker)))

    def _posted(self, event: Posted) -> None:
        payload = event.payload
        if isinstance(payload, Committed):
            for commit in payload.commits:
                self._committed(commit)
        elif isinstance(payload, CommitFailed | ShardDamaged):
            raise payload.error
        elif isinstance(payload, StopRequested):
            self._stopping = payload.number
            self._reporter.stopping(len(self._in_flight))
            self._planner.handle(mop.Drain())
            self._timer = threading.Timer(GRACE_S, lambda: self._backend.post(GraceOver()))
            self._timer.daemon = True
            self._timer.start()
        elif isinstance(payload, GraceOver):
            self._is_abandoned = True

    def _committed(self, commit: Commit) -> None:
        self._commits -= 1
        history, superfluous = self._run.history, []
        for record in commit.records:
            superfluous += history.apply(record)
            self._reporter.durable(record, history)
        if superfluous:
            self._put(Commit([], remove=superfluous))
        if commit.visits:
            if commit.state is not None:
                ref = CheckpointRef.from_json(commit.records[-1]["checkpoint"])
                self._states.saved(commit.trial, commit.state, ref)
                self._states.drop(commit.state)
            live = self._trials[commit.trial]
            live.is_saving = False
            visits = commit.visits + len(live.waiting)
            instructions = self._planner.handle(mop.Durable(commit.trial, visits))
            self._submit(instructions, after_save=True)
            self._conclude(instructions)
            self._take_held(live)

    def _take_held(self, live: LiveTrial) -> None:
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
                self._start(instruction, after_save)

    def _conclude(self, instructions: list[mop.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, mop.EpochEnded):
                self._end_epoch(instruction.unit, instruction.epoch)
            elif isinstance(instruction, mop.UnitFinished):
                self._end_trial(instruction.unit, TrialStatus.FINISHED, None)
            elif isinstance(instruction, mop.UnitFailed):
                status = TrialStatus.DIVERGED if instruction.diverged else TrialStatus.FAILED
                self._end_trial(instruction.unit, status, instruction.reason)

    def _start(self, start: mop.Start, after_save: bool) -> None:
        spec, visit = self._spec, start.visit
        params = tuple(self._trials[trial].params for trial in start.trials)
        is_training = visit.phase is mop.Phase.TRAIN
        split = Split.TRAIN if is_training else Split.VAL
        call = VisitCall(
            unit=visit.unit,
            trials=start.trials,
            params=params,
            seed=spec.seed,
            epoch=visit.epoch,
            step=visit.step,
            steps=spec.train_shards,
            split=split,
            shard=visit.shard,
            verify=not (self._verifier and self._verifier.has_checked(split, visit.shard)),
            attempt=visit.attempt,
            batch_size=int(str(params[0].get("batch_size", spec.batch_size))),
            probe=is_training and not self._has_probed,
        )
        worker, trial = start.workers[0], start.trials[0]
        source = self._states.source(trial)
        consume = is_training and self._states.hand_over(trial)
        held = None if consume else source
        self._states.hold(held)
        self._in_flight[worker] = (held, self._reporter.now())
        self._backend.submit(worker, call, source, consume=consume)
        self._reporter.started(call, worker, after_save=after_save)

    def _commit_visit(self, event: Done, state: StateRef, started: float, now: float) -> None:
        call, trial = event.call, event.call.trials[0]
        live = self._trials[trial]
        live.waiting.append(live.visit_record(event, started, now))
        saved = state if self._is_due(call) else None
        if saved is None:
            self._states.drop(state)
            if self._spec.checkpoint is Checkpointing.EPOCH:
                # Nothing to wait for but the checkpoint of the epoch before, if it is not there.
                if not live.is_saving:
                    self._act(self._planner.handle(mop.Durable(trial, call.visits)))
                return
        else:
            live.is_saving = True
            self._check_space(state.bytes)
        waiting, live.waiting = live.waiting, []
        self._put(
            Commit(waiting, trial=trial, visits=call.visits, attempt=call.attempt, state=saved)
        )

    def _is_due(self, call: VisitCall) -> bool:
        """Whether the state after this visit becomes a checkpoint."""
        mode, is_last = self._spec.checkpoint, call.step == call.steps - 1
        is_saved = mode is Checkpointing.VISIT or (mode is Checkpointing.EPOCH and is_last)
        return is_saved and call.is_training

    def _put(self, commit: Commit) -> None:
        if self._committer is None:
            raise CerebroError("nothing can be committed before the run begins.")
        self._commits += 1
        self._committer.put(commit)

    def _end_epoch(self, trial: int, epoch: int) -> None:
        spec, live = self._spec, self._trials[trial]
        self._put(Commit([live.epoch_record(epoch, spec.train_shards, spec.val_shards)]))

    def _end_trial(self, trial: int, status: TrialStatus, reason: str | None) -> None:
        self._states.forget(trial)
        self._put(Commit([self._trials[trial].end_record(status, reason)]))

    def _check_space(self, state_bytes: int) -> None:
        if not self._has_checked_space:
            self._has_checked_space = True
            unfinished = sum(not t.status.is_final for t in self._run.history.trials.values())
            check_space(self._run.store, trials=unfinished, state_bytes=state_bytes)
