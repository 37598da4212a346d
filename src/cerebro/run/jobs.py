"""Bulk work on workers: a list of jobs, each done once, in any order."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TypeVar, cast

from cerebro.backend.base import (
    Answered,
    Backend,
    Event,
    Failed,
    Failure,
    FailureKind,
    Job,
    Joined,
    Lost,
    Opening,
    Posted,
)
from cerebro.errors import (
    CerebroError,
    DataError,
    DiskFullError,
    StoreError,
    UsageError,
    WorkerError,
)
from cerebro.run.signals import GraceOver, StopRequested, StopSignals, Woken, interrupted

#: How often a job may lose its worker, or lack memory, before the work is given up.
ATTEMPTS = 3
#: How long jobs in flight may go on after a first Ctrl-C.
GRACE_S = 30.0

J = TypeVar("J", bound=Job)

_STORE_ERRORS = {"DiskFullError": DiskFullError, "StoreError": StoreError}
_ERRORS = {FailureKind.USAGE: UsageError, FailureKind.FATAL: DataError}


def carry_out(
    jobs: Sequence[J],
    backend: Backend,
    setup: Opening,
    *,
    workers: int,
    done: Callable[[J, object], None],
    is_started: bool = False,
) -> None:
    """Run every job once and tell what it gave; returns when all are done.

    A job is to leave what it makes where a second attempt can replace it: one whose worker died is
    run again elsewhere. The first failure of a job's own ends the work, with what it said; so does
    Ctrl-C, once jobs in flight are through. What was told to `done` by then stays done.

    Args:
        jobs: In the order in which workers take them.
        done: Called in this thread with a job and its answer, in the order of the answers.
        is_started: The backend was started with this setup already.
    """
    if not jobs:
        # It may be connected already, to say how many workers there are.
        backend.stop()
        return
    work = _Work(jobs, backend, done)
    stopping = StopSignals(
        lambda number: backend.post(StopRequested(number)), lambda: backend.post(Woken())
    )
    with stopping:
        try:
            if not is_started:
                backend.start(setup, workers)
            while not work.is_over:
                for event in backend.events():
                    work.handle(event)
        finally:
            stopping.ignore()
            work.close()
            backend.stop()


class _Work:
    """Which job is where."""

    def __init__(
        self, jobs: Sequence[J], backend: Backend, done: Callable[[J, object], None]
    ) -> None:
        self._left = iter(jobs)
        self._again: deque[Job] = deque()
        self._backend = backend
        self._done = cast("Callable[[Job, object], None]", done)
        self._idle: list[int] = []
        self._busy: set[int] = set()
        self._attempts: Counter[int] = Counter()
        self._stop: StopRequested | None = None
        self._grace: threading.Timer | None = None
        self.is_over = False

    def handle(self, event: Event) -> None:
        if isinstance(event, Joined):
            self._idle.append(event.info.worker)
        elif isinstance(event, Answered):
            self._free(event.worker)
            if self._stop is None:
                # It has its next job while what came of this one is kept.
                self._hand_out()
            self._done(event.call, event.answer)
        elif isinstance(event, Failed):
            self._free(event.worker)
            self._failed(cast(Job, event.call), event.failure)
        elif isinstance(event, Lost):
            self._lost(event)
        elif isinstance(event, Posted):
            self._posted(event.payload)
        self._hand_out()

    def close(self) -> None:
        if self._grace is not None:
            self._grace.cancel()

    def _free(self, worker: int) -> None:
        self._busy.discard(worker)
        self._idle.append(worker)

    def _failed(self, job: Job, failure: Failure) -> None:
        if failure.kind is FailureKind.MEMORY and self._may_try_again(job):
            return
        raise _as_error(failure)

    def _lost(self, event: Lost) -> None:
        self._busy.discard(event.worker)
        if event.worker in self._idle:
            self._idle.remove(event.worker)
        if event.call is not None and not self._may_try_again(cast(Job, event.call)):
            raise WorkerError(
                f"a worker must live through its work, but {ATTEMPTS} died with the same: the last "
                f"one, worker {event.worker}, {event.cause}. What was done before is kept: the "
                "same command goes on from there."
            )

    def _may_try_again(self, job: Job) -> bool:
        self._attempts[id(job)] += 1
        self._again.append(job)
        return self._attempts[id(job)] < ATTEMPTS

    def _posted(self, payload: object) -> None:
        if isinstance(payload, StopRequested):
            self._stop = payload
            self._grace = threading.Timer(GRACE_S, self._backend.post, [GraceOver()])
            self._grace.daemon = True
            self._grace.start()
        elif isinstance(payload, GraceOver):
            self._busy.clear()

    def _hand_out(self) -> None:
        if self._stop is not None:
            if not self._busy:
                raise interrupted(
                    self._stop.number,
                    "stopped; what was done is kept, and the same command goes on from there.",
                )
            return
        while self._idle:
            job = self._again.popleft() if self._again else next(self._left, None)
            if job is None:
                self.is_over = not self._busy
                return
            worker = self._idle.pop(0)
            self._busy.add(worker)
            self._backend.submit(worker, job, None)


def _as_error(failure: Failure) -> CerebroError:
    if failure.error in _STORE_ERRORS:
        return _STORE_ERRORS[failure.error](failure.message)
    kind = _ERRORS.get(failure.kind)
    if kind is not None:
        return kind(failure.message)
    return WorkerError(f"{failure.message}\n{failure.traceback}")
