"""The same plan in this process, one visit at a time, in the order of submission."""

from __future__ import annotations

import mmap
import queue
from collections import deque
from typing import cast

from cerebro.backend.base import (
    Answered,
    Done,
    Event,
    Failed,
    FailureKind,
    Job,
    Joined,
    Lost,
    Opening,
    Posted,
    Runner,
    SaveRequest,
    Source,
    StateRef,
)
from cerebro.backend.failure import describe_failure
from cerebro.backend.gang.ends import RankLost
from cerebro.backend.opening import introduce, save_state
from cerebro.errors import RunInterrupted, WorkerError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.progress import PROGRESS
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import State, VisitCall, VisitReport


class InlineBackend:
    """Runs visits when `events` is called. For debugging, and the oracle of the tests."""

    #: A worker may be a gang of several.
    has_gangs = True
    ends_visits = True

    def __init__(self, *, log_dir: str | None = None) -> None:
        self._queue: deque[tuple[int, VisitCall | Job, State | CheckpointRef | None]] = deque()
        #: Safe to put to from another thread or a signal handler.
        self._events: queue.SimpleQueue[Event] = queue.SimpleQueue()
        self._states: dict[int, memoryview] = {}
        self._next_key = 0
        self._runner: Runner | None = None

    def start(self, setup: Opening, workers: int) -> None:
        try:
            self._runner = setup.open(0)
        except RankLost as lost:
            raise WorkerError(f"the worker of this process {lost}.") from lost
        for index in range(workers):
            self._events.put(Joined(introduce(index, self._runner)))

    def submit(
        self,
        worker: int,
        call: VisitCall | Job,
        source: Source,
        *,
        consume: bool = False,
    ) -> None:
        if not isinstance(source, StateRef):
            self._queue.append((worker, call, source))
            return
        take = self._states.pop if consume else self._states.__getitem__
        self._queue.append((worker, call, State(take(source.key), source.meta)))

    def events(self) -> list[Event]:
        if self._events.empty() and self._queue:
            worker, call, source = self._queue.popleft()
            event = self._run(worker, call, source)
            self._events.put(event)
            if isinstance(event, Lost) and self._runner is not None:
                self._events.put(Joined(introduce(worker, self._runner)))
        return [self._events.get()]

    def post(self, payload: object) -> None:
        self._events.put(Posted(payload))

    def progress(self) -> int:
        return PROGRESS.batches

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        return save_state(self._states[state.key], state, request)

    def release(self, state: StateRef) -> None:
        del self._states[state.key]

    def stop(self) -> None:
        self._queue.clear()
        self._states.clear()
        if self._runner is not None:
            self._runner.close()
            self._runner = None

    def _run(
        self, worker: int, call: VisitCall | Job, source: State | CheckpointRef | None
    ) -> Event:
        assert self._runner is not None, "start() comes first"  # noqa: S101
        try:
            if not isinstance(call, VisitCall):
                return Answered(worker, call, call.run(self._runner))
            runner = cast(VisitRunner, self._runner)
            if isinstance(source, CheckpointRef):
                source = runner.load(source)
            state, report = runner.run(call, source, _allocate)
        except RunInterrupted:
            raise
        except RankLost as lost:
            return Lost(worker, call, str(lost))
        except (Exception, SystemExit) as error:
            failure = describe_failure(error)
        else:
            return self._done(worker, call, report, state)
        if failure.kind is FailureKind.MEMORY:
            self._runner.free()
        return Failed(worker, call, failure)

    def _done(self, worker: int, call: VisitCall, report: VisitReport, state: State | None) -> Done:
        if state is None:
            return Done(worker, call, report, None)
        key, self._next_key = self._next_key, self._next_key + 1
        self._states[key] = state.buffer
        return Done(worker, call, report, StateRef(key, state.buffer.nbytes, state.meta))


def _allocate(size: int) -> memoryview:
    """Page-aligned like a slot of shared memory: alignment may decide the last bit of a sum."""
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]
