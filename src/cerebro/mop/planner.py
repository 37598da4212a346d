"""The planner: events in, instructions out. No I/O, clock, threads or randomness."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from cerebro.mop.failures import Budget, Cause, Decision, decide, explain
from cerebro.mop.messages import (
    Drain,
    Durable,
    EpochEnded,
    Event,
    Finished,
    Instruction,
    Resume,
    Stalled,
    Start,
    UnitAdded,
    UnitExtended,
    UnitFailed,
    UnitFinished,
    UnitPaused,
    UnitReduced,
    UnitStopped,
    VisitDone,
    VisitFailed,
    WorkerJoined,
    WorkerLost,
)
from cerebro.mop.order import shard_at
from cerebro.mop.placement import Placement
from cerebro.mop.state import UnitState
from cerebro.mop.story import Story
from cerebro.mop.visit import Phase, Visit, check_place, check_unit

_TRAIN, _EVAL = Phase.TRAIN, Phase.EVAL
# Twice as fast as calling the class, which matters once per visit.
_new_tuple = tuple.__new__


class Planner:
    """Decides which unit visits which shard on which worker, and what becomes of failures.

    Args:
        train_shards: Train visits in an epoch.
        val_shards: Eval visits in an epoch.
        max_lag: A train visit starts only while at most this many are done and not durable; None
            where nothing is ever made durable.
        budget: How often one visit may fail.
        story: How many events to remember for `story`; 0 keeps none.

    >>> from cerebro.mop.visit import Unit
    >>> planner = Planner(train_shards=2)
    >>> planner.handle(WorkerJoined(worker=0))
    []
    >>> planner.handle(UnitAdded(Unit(id=5, trials=(5,), start=1, epochs=1)))[0].visit.shard
    1
    >>> planner.handle(VisitDone(5, 0, 0, Phase.TRAIN, attempt=0, worker=0, seconds=1.0))[0].visit
    Visit(unit=5, epoch=0, step=1, phase=<Phase.TRAIN: 'train'>, shard=0, attempt=0)
    >>> planner.handle(VisitDone(5, 0, 1, Phase.TRAIN, attempt=0, worker=0, seconds=1.0))
    [EpochEnded(unit=5, epoch=0), UnitFinished(unit=5), Finished()]
    """

    def __init__(
        self,
        train_shards: int,
        val_shards: int = 0,
        *,
        max_lag: int | None = 1,
        budget: Budget | None = None,
        story: int = 0,
    ) -> None:
        if train_shards < 1 or val_shards < 0 or (max_lag is not None and max_lag < 0):
            raise ValueError(
                "`train_shards >= 1`, `val_shards >= 0` and `max_lag >= 0` must hold, but got "
                f"train_shards={train_shards}, val_shards={val_shards}, max_lag={max_lag}."
            )
        self.train_shards = train_shards
        self.val_shards = val_shards
        self.max_lag = sys.maxsize if max_lag is None else max_lag
        self._has_lag = max_lag is not None
        self.budget = budget or Budget()
        #: every unit ever added, by id
        self.units: dict[int, UnitState] = {}
        self.placement = Placement(train_shards, val_shards)
        self._balance = self.placement.balance
        #: nothing more is started
        self.is_draining = False
        # Worker -> the visit whose answer is awaited, also when its unit is closed by now.
        self._running: dict[int, Visit] = {}
        self._unfinished = 0
        self._story = Story(story) if story else None
        self._handlers: dict[type[Event], Callable[[Any], list[Instruction]]] = {
            VisitDone: self._visit_done,
            Durable: self._durable,
            UnitAdded: self._unit_added,
            UnitExtended: self._unit_extended,
            UnitPaused: self._unit_paused,
            UnitReduced: self._unit_reduced,
            UnitStopped: self._unit_reduced,
            VisitFailed: self._visit_failed,
            WorkerJoined: self._worker_joined,
            WorkerLost: self._worker_lost,
            Drain: self._drain,
            Resume: self._resume,
        }

    def handle(self, event: Event) -> list[Instruction]:
        """What to do now; ValueError for a unit that is unknown, or added while it is there."""
        instructions = self._handlers[type(event)](event)
        if self._story is not None:
            self._story.record(event, instructions)
        return instructions

    @property
    def finished(self) -> bool:
        """Whether no unit is unfinished."""
        return self._unfinished == 0

    @property
    def idle(self) -> tuple[int, ...]:
        """Live workers without a visit."""
        return tuple(self.placement.idle)

    @property
    def workers(self) -> tuple[int, ...]:
        """Live workers."""
        return tuple(self.placement.holds)

    def running(self) -> dict[int, Visit]:
        """Worker -> the visit it has not answered yet."""
        return dict(self._running)

    def progress(self, unit: int) -> tuple[int, int]:
        """(epoch under way, train visits done in it); the epoch is the unit's epochs at the end."""
        state = self._known(unit)
        return state.epoch, state.step

    def story(self, unit: int) -> list[dict[str, object]]:
        """The remembered messages about one unit, oldest first."""
        return self._story.of(unit) if self._story is not None else []

    def _known(self, unit: int) -> UnitState:
        state = self.units.get(unit)
        if state is None:
            raise ValueError(f"a unit must be added before other events name it, but got {unit}.")
        return state

    # Events

    def _visit_done(self, event: VisitDone) -> list[Instruction]:
        unit, epoch, step, phase, attempt, worker, seconds = event
        visit = self._running.get(worker)
        if visit is None or visit != (unit, epoch, step, phase, visit[4], attempt):
            return []
        out: list[Instruction] = []
        state = self.units[unit]
        if not state.closed:
            if phase is _TRAIN:
                self._balance.trained(worker, state, seconds)
                self._proceed(state, out)
            else:
                self._evaluated(state, step, out)
                self._balance.evaluated(worker, state, seconds)
        self._release(worker, out)
        return out

    def _visit_failed(self, event: VisitFailed) -> list[Instruction]:
        unit, epoch, step, phase, attempt, worker, cause, signature = event
        visit = self._running.get(worker)
        if visit is None or visit != (unit, epoch, step, phase, visit[4], attempt):
            return []
        out: list[Instruction] = []
        is_retried = self._judge(visit, cause, signature, out)
        if is_retried and self.units[unit].history(step).memory:
            # It bars the others, also from this worker.
            self._retry(visit)
            is_retried = False
        # Its worker takes something else first, so that the visit is tried elsewhere if it can be.
        self._release(worker, out)
        if is_retried:
            self._retry(visit)
            self._assign(out, shunned=worker)
        return out

    def _worker_joined(self, event: WorkerJoined) -> list[Instruction]:
        worker, holds = event
        is_new = worker not in self.placement.holds
        self.placement.join(worker, holds)
        out: list[Instruction] = []
        if is_new:
            self._release(worker, out)
        return out

    def _worker_lost(self, event: WorkerLost) -> list[Instruction]:
        worker = event.worker
        if worker not in self.placement.holds:
            return []
        self.placement.lose(worker)
        out: list[Instruction] = []
        visit = self._running.pop(worker, None)
        if visit is not None:
            if self._judge(visit, event.cause, "", out):
                self._retry(visit)
            self._assign(out)
        if self._unfinished and not self.placement.holds:
            out.append(Stalled())
        return out

    def _unit_added(self, event: UnitAdded) -> list[Instruction]:
        unit, epoch, step, staying = event
        check_unit(unit)
        check_place(unit, epoch, step, self.train_shards)
        known = self.units.get(unit.id)
        if known is not None and (
            not known.closed or any(visit.unit == unit.id for visit in self._running.values())
        ):
            raise ValueError(
                f"a unit is added anew once it is closed and nothing of it runs, but unit "
                f"{unit.id} is there already."
            )
        state = UnitState(unit, self.train_shards, epoch, step)
        if staying:
            state.reduce(staying)
        if known is not None:
            state.visit_s = known.visit_s
        self.units[unit.id] = state
        out: list[Instruction] = []
        if not state.closed:
            self._unfinished += 1
            self._balance.add(state)
            self._proceed(state, out)
            self._assign(out)
        return out

    def _unit_paused(self, event: UnitPaused) -> list[Instruction]:
        state = self._known(event.unit)
        if not state.closed:
            state.paused = True
            state.entry = None
        return []

    def _unit_extended(self, event: UnitExtended) -> list[Instruction]:
        state = self._known(event.unit)
        out: list[Instruction] = []
        if not state.closed and event.epochs > state.unit.epochs:
            state.extend(event.epochs, self.train_shards)
            self._balance.add(state)
            if state.entry is not None:
                self.placement.push_again(state, state.shard)
                self._assign(out)
        return out

    def _unit_reduced(self, event: UnitReduced | UnitStopped) -> list[Instruction]:
        state = self._known(event.unit)
        trials = event.trials if isinstance(event, UnitReduced) else ()
        out: list[Instruction] = []
        if not state.closed:
            state.reduce(trials)
            if not trials:
                self._close(state, out)
        return out

    def _durable(self, event: Durable) -> list[Instruction]:
        unit, visits = event
        state = self._known(unit)
        if visits > state.done:
            raise ValueError(
                f"`durable <= done` must hold, but got durable={visits} with {state.done} train "
                f"visits done (unit {unit})."
            )
        was_blocked = state.done - state.durable > self.max_lag
        state.durable = max(state.durable, visits)
        out: list[Instruction] = []
        # Only a train visit waits for this; during the eval visits the next one is not yet due.
        if was_blocked and not state.closed and state.step < self.train_shards:
            self._proceed(state, out)
            self._assign(out)
        return out

    def _drain(self, event: Drain) -> list[Instruction]:
        self.is_draining = True
        return []

    def _resume(self, event: Resume) -> list[Instruction]:
        self.is_draining = False
        out: list[Instruction] = []
        self._assign(out)
        return out

    # Transitions of a unit

    def _proceed(self, state: UnitState, out: list[Instruction]) -> None:
        """Make the unit's next visits ready, or end its epoch."""
        step, shards = state.step, self.train_shards
        if step < shards:
            is_due = not self._has_lag or state.done - state.durable <= self.max_lag
            if is_due and not state.paused:
                self.placement.push(state, shard_at(state.start, state.epoch, step, shards))
        elif self.val_shards:
            state.evals_left = self.val_shards
            state.evals = list(range(self.val_shards - 1, -1, -1))
            self._balance.recount(state)
            if not state.paused:
                self.placement.push(state, -1)
        else:
            self._end_epoch(state, out)

    def _evaluated(self, state: UnitState, step: int, out: list[Instruction]) -> None:
        if state.histories:
            state.histories.pop(step, None)
        state.evals_left -= 1
        if not state.evals_left:
            self._end_epoch(state, out)

    def _end_epoch(self, state: UnitState, out: list[Instruction]) -> None:
        out.append(EpochEnded(state.id, state.epoch))
        state.end_epoch()
        if state.epoch < state.unit.epochs:
            self._proceed(state, out)
        else:
            out.append(UnitFinished(state.id))
            self._close(state, out)

    def _judge(self, visit: Visit, cause: Cause, signature: str, out: list[Instruction]) -> bool:
        """Whether the failed visit is tried again; if not, its unit is closed."""
        state = self.units[visit.unit]
        if state.closed:
            return False
        history = state.history(visit.step).after(cause, signature)
        decision = decide(history, cause, self.budget)
        if decision is Decision.RETRY:
            state.histories = {**(state.histories or {}), visit.step: history}
            return True
        where = f"epoch {visit.epoch}, {visit.phase} step {visit.step}, shard {visit.shard}"
        reason = f"{explain(decision, history)} ({where})"
        out.append(UnitFailed(state.id, reason, cause))
        self._close(state, out)
        return False

    def _retry(self, visit: Visit) -> None:
        state = self.units[visit.unit]
        if visit.phase is not _TRAIN:
            state.evals.append(visit.step)
        if not state.paused:
            self.placement.push_again(state, visit.shard if visit.phase is _TRAIN else -1)

    def _close(self, state: UnitState, out: list[Instruction]) -> None:
        state.closed = True
        state.entry = None
        state.evals.clear()
        self._balance.drop(state)
        self._unfinished -= 1
        if not self._unfinished:
            out.append(Finished())

    # Workers

    def _release(self, worker: int, out: list[Instruction]) -> None:
        """Give a worker that is through with its visit, or new, the next one."""
        placement = self.placement
        if not placement.idle and not self.is_draining and not placement.is_barred:
            state = placement.take(worker)
            state = placement.suited(worker, state) if self._balance.is_tight else state
            if state is not None:
                self._start(state, worker, out)
                return
        self._running.pop(worker, None)
        placement.idle[worker] = None
        self._assign(out)

    def _assign(self, out: list[Instruction], shunned: int | None = None) -> None:
        """Give idle workers what is ready, longest first; the shunned worker comes last."""
        idle = self.placement.idle
        if shunned in idle and len(idle) > 1:
            del idle[shunned]
            self._assign(out)
            idle[shunned] = None
        while idle and not self.is_draining and (match := self.placement.match()) is not None:
            state, worker = match
            del idle[worker]
            self._start(state, worker, out)

    def _start(self, state: UnitState, worker: int, out: list[Instruction]) -> None:
        step = state.step
        if step < self.train_shards:
            shard, phase = state.shard, _TRAIN
        else:
            step = shard = state.evals.pop()
            phase = _EVAL
            if state.evals:
                self.placement.push_again(state, -1)
        attempt = 0 if state.histories is None else state.attempt(step)
        visit = _new_tuple(Visit, (state.id, state.epoch, step, phase, shard, attempt))
        self._running[worker] = visit
        pace = self._balance.paces[worker]
        pace.since, pace.unit = self._balance.now, state
        out.append(_new_tuple(Start, (visit, state.trials, (worker,))))
