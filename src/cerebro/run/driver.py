"""The driver: events from workers to the plan, its instructions to workers, results to disk."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable

from cerebro import mop
from cerebro.backend.base import (
    Answered,
    Backend,
    Done,
    Failed,
    FailureKind,
    Joined,
    Lost,
    Posted,
    Setup,
    WorkerInfo,
)
from cerebro.run.aggregation import Aggregator
from cerebro.run.answers import cause_of, fatal_error, visit_done, visit_failed
from cerebro.run.checks import check_metric
from cerebro.run.committer import Commit, CommitFailed, Committed, Dropped
from cerebro.run.conduct import Conduct
from cerebro.run.direction import Direction
from cerebro.run.dispatch import Dispatcher
from cerebro.run.entry import entries
from cerebro.run.homes import Homes
from cerebro.run.ledger import Ledger
from cerebro.run.orders import Orders
from cerebro.run.prelude import Prelude
from cerebro.run.recovery import OpenRun
from cerebro.run.reporter import Reporter
from cerebro.run.roster import Roster
from cerebro.run.signals import (
    Broken,
    GraceOver,
    LingerOver,
    StopRequested,
    StopSignals,
    TimeUp,
    Woken,
)
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.states import States
from cerebro.run.steering import Inbox, Rung
from cerebro.run.stopping import Stopping
from cerebro.run.surveyor import Surveyor
from cerebro.run.unit import LiveUnit
from cerebro.run.verifier import ShardDamaged, Verifier
from cerebro.storage.bell import Bell
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.track import records
from cerebro.track.efficiency import Summary
from cerebro.train.visit import VisitCall
from cerebro.types import TrialStatus

SWITCH_S = 0.0005


class Driver:
    """Carries one run to its end, or to where it is stopped.

    Args:
        ready: Called with the first worker's description before anything is trained; it writes
            run.json of a new run and refuses a resume that would give other results.
        track: Receives the run's records.
        direction: What the search wants to be done.
        seconds: How long this process may take; None: as long as it needs.
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
        direction: Direction,
        orders: Orders,
        seconds: float | None = None,
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
        # Folds number their shards otherwise.
        self._homes = Homes(0 if spec.folds else spec.train_shards, workers)
        self._reporter = Reporter(track, workers)
        self._seconds = seconds
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
        self._roster = Roster(
            *(spec, run, self._planner, self._states, self._ledger, self._dispatcher), self._act
        )
        inbox = Inbox(run.store, spec, run.history, orders)
        self._conduct = Conduct(run, direction, orders, inbox, self._roster, self._ledger)
        self._stopping = Stopping(
            *(run, self._roster, self._ledger, self._states, self._dispatcher), backend.post
        )
        self._handlers: dict[type, Callable[..., None]] = {
            Joined: self._joined,
            Answered: self._prelude.answered,
            Done: self._done,
            Failed: self._failed,
            Lost: self._lost,
            Posted: self._posted,
        }

    def execute(self, setup: Setup) -> Summary:
        """Run until every trial is finished, stopped or failed."""
        self._roster.aggregator = Aggregator(setup.task)
        switch_s = sys.getswitchinterval()
        post = self._backend.post
        wake = (lambda: post(Woken())) if self._threaded else None
        with StopSignals(lambda number: post(StopRequested(number)), wake) as signals:
            try:
                # Workers wait for this thread: those beside it must not keep it waiting for 5 ms.
                sys.setswitchinterval(SWITCH_S)
                if self._threaded:
                    self._dispatcher.verifier = Verifier(self._spec.data, post)
                self._backend.start(setup, self._workers)
                with self._bell():
                    while not self._is_over():
                        for event in self._backend.events():
                            self._handlers[type(event)](event)
                        self._step()
                        self._stopping.save_next()
            finally:
                signals.ignore()
                sys.setswitchinterval(switch_s)
                self._stopping.close()
                self._ledger.close(now=signals.is_urgent)
                if self._dispatcher.verifier is not None:
                    self._dispatcher.verifier.close()
                self._backend.stop()
        # Before the run begins the planner knows no trial and calls that finished.
        is_finished = self._ledger.is_open and self._roster.is_through
        if self._stopping.is_asked and not is_finished:
            raise self._stopping.error()
        return self._reporter.summary()

    @property
    def _is_stepped(self) -> bool:
        return self._spec.is_adaptive and not self._threaded

    def _step(self) -> None:
        """Without threads a search decides after each visit, before the next one is chosen.

        So what is done next depends on what is durable alone, in a run that was killed too.
        """
        if self._is_stepped and self._ledger.is_open and not self._stopping.is_asked:
            if not self._ledger.pending:
                self._act(self._planner.handle(mop.Resume()))
            self._planner.handle(mop.Drain())

    def _is_over(self) -> bool:
        if not self._ledger.is_open:
            return self._stopping.is_asked
        if self._ledger.pending:
            return False
        if self._stopping.is_asked:
            return self._stopping.is_through
        if not self._roster.is_through:
            return False
        units = self._dispatcher.units
        # Visits of trials that have ended are not waited for, if nothing comes of them later.
        return not (any(map(self._roster.awaits, units)) if self._backend.ends_visits else units)

    # Before the first visit

    def _joined(self, event: Joined) -> None:
        info = event.info
        if not self._is_ready:
            self._is_ready = True
            self._ready(info)
        self._reporter.worker(info.worker, alive=True, cause=None)
        joined = self._homes.joined(info)
        if self._ledger.is_open:
            for each in joined:
                self._act(self._planner.handle(each))
        else:
            self._prelude.joined(info)

    def _bell(self) -> contextlib.AbstractContextManager[object]:
        """Wakes the loop when somebody sends a command."""
        if not self._threaded:
            return contextlib.nullcontext()
        return Bell(self._run.store, lambda: self._backend.post(Rung()))

    def _begin(self) -> None:
        self._ledger.open(threaded=self._threaded)
        if self._is_stepped:
            self._planner.handle(mop.Drain())
        for entry in entries(self._run.history, self._spec):
            self._roster.enter(entry)
        for joined in self._homes.all():
            self._act(self._planner.handle(joined))
        self._conduct.look()
        if self._seconds is not None:
            self._stopping.after(max(0.0, self._seconds - self._reporter.now()), TimeUp())

    # Answers

    def _done(self, event: Done) -> None:
        live = self._roster[event.call.unit]
        now = self._reporter.answered(event.worker)
        if live.is_abandoned:
            self._discard(event, live)
        elif live.is_saving and self._ledger.is_due(event.call):
            # At most one visit of a unit is done and not durable: this one is, in a moment.
            live.held = (event, now)
        else:
            self._take(event, now)
        self._conduct.look()

    def _take(self, event: Done, now: float, *, after_save: bool = False) -> None:
        call, unit = event.call, event.call.unit
        source, started = self._dispatcher.take(event.worker)
        live = self._roster[unit]
        if call.probe:
            check_metric(self._spec, event.report)
            self._dispatcher.is_probing = False
        diverged = live.add(event, now)
        ended = self._roster.reduce(live, TrialStatus.DIVERGED, diverged) if diverged else []
        if event.state is not None:
            self._states.replace(unit, event.state)
            self._states.hold(event.state)
        self._states.drop(source)
        # Without threads nothing shall depend on the clock: visits are planned by their number.
        seconds = now - started if self._threaded else 0.0
        instructions = self._planner.handle(visit_done(event, live, seconds))
        # The next visit starts before this one is written out.
        self._submit(instructions, after_save=after_save)
        if not live.alive and diverged:
            # No trial is left: what it was about to save is of no use.
            self._states.drop(event.state)
            self._states.forget(unit)
            self._ledger.put(Commit([*live.drop_waiting(), *ended]), live)
        elif event.state is not None:
            live.waiting += [live.visit_record(event, started, now, diverged), *ended]
            if self._ledger.put_visit(live, call, event.state):
                self._act(self._planner.handle(mop.Durable(unit, call.visits)))
        elif ended:
            self._ledger.put(Commit(ended), live)
        self._reporter.finished(event, started, now, live.alive)
        self._conclude(instructions)
        self._roster.settle(live)

    def _discard(self, event: Done, live: LiveUnit) -> None:
        """A visit of a unit that was given up or withdrawn meanwhile."""
        self._states.drop(self._dispatcher.take(event.worker)[0])
        if event.state is not None:
            self._backend.release(event.state)
        self._act(self._planner.handle(visit_done(event, live, 0.0)))
        self._roster.settle(live)

    def _failed(self, event: Failed) -> None:
        failure, call = event.failure, event.call
        error = fatal_error(event, is_probing=self._dispatcher.is_probing)
        if error is not None:
            raise error
        if not isinstance(call, VisitCall):
            is_final = failure.kind is FailureKind.USAGE
            self._prelude.failed(call, failure.message, is_final=is_final)
            return
        self._states.drop(self._dispatcher.take(event.worker)[0])
        live, cause = self._roster[call.unit], cause_of(event)
        if failure.kind is FailureKind.LOST_STATE:
            self._roster.lose(live, failure.message, call)
        elif not live.is_abandoned:
            live.failure = failure
            if cause is mop.Cause.MEMORY and live.lacks_memory(call) and failure.is_splittable:
                self._roster.split(live, call)
                cause = mop.Cause.AGAIN
        self._act(self._planner.handle(visit_failed(event, call, live, cause)))
        self._roster.settle(live)

    def _lost(self, event: Lost) -> None:
        for live in self._roster:
            if live.held is not None and live.held[0].worker == event.worker:
                self._take_held(live)
        message = f"worker {event.worker} {event.cause}"
        if isinstance(event.call, VisitCall):
            self._states.drop(self._dispatcher.take(event.worker)[0])
            if not self._roster[event.call.unit].is_abandoned:
                self._roster[event.call.unit].lose(message)
        self._reporter.worker(event.worker, alive=False, cause=event.cause)
        self._prelude.lost(event.worker)
        self._homes.lost(event.worker)
        if event.call is not None and not isinstance(event.call, VisitCall):
            self._prelude.failed(event.call, message)
        lost = mop.Cause.AGAIN if event.is_machine else mop.Cause.LOST
        cause = mop.Cause.MEMORY if event.is_memory else lost
        self._act(self._planner.handle(mop.WorkerLost(event.worker, cause)))
        if isinstance(event.call, VisitCall):
            self._roster.settle(self._roster[event.call.unit])

    def _posted(self, event: Posted) -> None:
        payload = event.payload
        if isinstance(payload, Committed):
            for commit in payload.commits:
                self._committed(commit)
        elif isinstance(payload, Dropped):
            self._dropped(payload)
        elif isinstance(payload, Broken | CommitFailed | ShardDamaged):
            raise payload.error
        elif isinstance(payload, StopRequested) and not self._stopping.is_asked:
            self._reporter.stopping(len(self._dispatcher))
            self._planner.handle(mop.Drain())
            self._stopping.begin(payload.number)
        elif isinstance(payload, LingerOver):
            self._stopping.is_hurried = True
        elif isinstance(payload, GraceOver):
            self._stopping.is_abandoned = True
        elif isinstance(payload, TimeUp):
            self._conduct.halt("the time that the run may take is over", "budget")
        elif isinstance(payload, Rung) and self._ledger.is_open:
            self._conduct.look()

    def _committed(self, commit: Commit) -> None:
        live = self._ledger.settle(commit)
        if live is not None and commit.visits:
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
        self._conduct.settled(commit.records)
        if live is not None:
            self._roster.settle(live)

    def _dropped(self, dropped: Dropped) -> None:
        live = self._ledger.drop(dropped.commit)
        if dropped.commit.state is not None:
            self._roster.lose(live, dropped.reason)
            self._take_held(live)
        self._roster.settle(live)

    def _take_held(self, live: LiveUnit) -> None:
        if live.held is not None:
            (event, now), live.held = live.held, None
            if live.is_abandoned:
                self._discard(event, live)
            else:
                self._take(event, now, after_save=True)

    # Instructions

    def _act(self, instructions: list[mop.Instruction]) -> None:
        self._submit(instructions)
        self._conclude(instructions)

    def _submit(self, instructions: list[mop.Instruction], *, after_save: bool = False) -> None:
        for instruction in instructions:
            if isinstance(instruction, mop.Start):
                live = self._roster[instruction.visit.unit]
                self._dispatcher.start(instruction, live, after_save=after_save)

    def _conclude(self, instructions: list[mop.Instruction]) -> None:
        for instruction in instructions:
            if isinstance(instruction, mop.EpochEnded):
                self._roster.end_epoch(self._roster[instruction.unit], instruction.epoch)
            elif isinstance(instruction, mop.UnitFinished):
                self._roster.finish(self._roster[instruction.unit])
            elif isinstance(instruction, mop.UnitFailed):
                self._roster.give_up(self._roster[instruction.unit], instruction)
