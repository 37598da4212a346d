"""The workers of one start of the Spark backend, the calls they have and the states they left."""

from __future__ import annotations

import contextlib
import itertools
import logging
import queue
import time
from dataclasses import dataclass
from typing import cast

from cerebro.backend.base import (
    Answered,
    Done,
    Event,
    Failed,
    Job,
    Joined,
    Lost,
    Posted,
    Source,
    StateRef,
)
from cerebro.backend.opening import cannot_start
from cerebro.backend.spark.hops import Hop, sweep
from cerebro.backend.spark.orders import Answer, Order, Stuck, Visited
from cerebro.backend.spark.wire import encode
from cerebro.backend.spark.worker import START_ATTEMPTS, Broken, GaveUp, Session, SparkWorker, Told
from cerebro.backend.wire import CannotStart, Hello, JobDone, VisitFailed
from cerebro.errors import StoreError, UsageError, WorkerError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import VisitCall

#: How long cancelled jobs may take to end.
_STOP_S = 10.0
_CANCEL_EVERY_S = 0.2

logger = logging.getLogger("cerebro.backend")


@dataclass(slots=True)
class _Flight:
    """A call that a worker has."""

    call: VisitCall | Job
    number: int
    #: The state it starts from, if that is given up with it.
    consumed: Hop | None


class Crew:
    """Gives orders to workers and makes events of what they answer. For the driver's thread."""

    def __init__(self, session: Session, workers: int) -> None:
        self.session = session
        self.batches = 0
        self._has_joined = False
        self._ready_by = time.monotonic() + session.charter.limits.start_s
        #: What the last worker that was lost said.
        self._trouble = ""
        self._ready: set[int] = set()
        self._flights: dict[int, _Flight] = {}
        self._hops: dict[int, Hop] = {}
        self._keys = itertools.count()
        self._numbers = itertools.count()
        #: Calls for workers that had been lost by then.
        self._late: list[Event] = []
        self._workers = {index: SparkWorker(index, session) for index in range(workers)}
        for worker in self._workers.values():
            worker.start()

    def submit(self, worker: int, call: VisitCall | Job, source: Source, *, consume: bool) -> None:
        hop = self._hops[source.key] if isinstance(source, StateRef) else None
        consumed = self._hops.pop(source.key) if isinstance(source, StateRef) and consume else None
        if worker not in self._ready:
            # It was lost after the caller last looked.
            self._remove(consumed)
            cause = "was lost before the visit reached it"
            self._late.append(Lost(worker, call, cause, is_machine=True))
            return
        number = next(self._numbers)
        order = Order(
            token=self.session.charter.token,
            worker=worker,
            number=number,
            call=call,
            source=source if isinstance(source, CheckpointRef) else hop,
        )
        packed = encode(order)
        self._flights[worker] = _Flight(call, number, consumed)
        self._workers[worker].give(packed)

    def wait(self, told: queue.SimpleQueue[Told | Posted]) -> list[Event]:
        """What happened since; waits until there is something."""
        while not self._late:
            said = self._next(told)
            event = said if isinstance(said, Posted) else self._hear(said.worker, said.said)
            if event is not None:
                return [event]
        found, self._late = self._late, []
        return found

    def hop(self, state: StateRef) -> Hop:
        """Where a state is."""
        return self._hops[state.key]

    def release(self, state: StateRef) -> None:
        self._remove(self._hops.pop(state.key))

    def stop(self) -> None:
        """Cancel all jobs, those too that are about to be submitted, and see the threads off."""
        session = self.session
        session.is_stopping.set()
        left = list(self._workers.values())
        for worker in left:
            worker.dismiss()
        deadline = time.monotonic() + _STOP_S
        while left and time.monotonic() < deadline:
            # The context may have ended before.
            with contextlib.suppress(Exception):
                session.context.cancelJobGroup(session.group)
            left = [worker for worker in left if not worker.has_ended(_CANCEL_EVERY_S)]
        if left:
            logger.warning("%d Spark jobs could not be cancelled within %g s", len(left), _STOP_S)
        with contextlib.suppress(Exception):
            session.broadcast.destroy()
        if session.charter.store is not None:
            with contextlib.suppress(StoreError):
                sweep(session.charter.store)

    def _next(self, told: queue.SimpleQueue[Told | Posted]) -> Told | Posted:
        """What comes next; the first worker must be ready in time."""
        if self._has_joined:
            return told.get()
        try:
            return told.get(timeout=max(0.0, self._ready_by - time.monotonic()))
        except queue.Empty:
            raise WorkerError(
                f"a worker must be ready within {self.session.charter.limits.start_s:g} s, but "
                "Spark has run none by then. "
                f"{self._trouble or 'Does the cluster have free cores and memory?'} "
                "start_timeout= gives it more time."
            ) from None

    def _hear(self, worker: int, said: Answer | Broken | GaveUp) -> Event | None:
        if isinstance(said, GaveUp):
            self._give_up(worker)
            return None
        flight = self._flights.pop(worker, None)
        if flight is not None:
            self._remove(flight.consumed)
        if isinstance(said, Broken):
            return self._lose(worker, flight, said.cause, is_memory=said.is_memory)
        self.batches += said.batches
        message = said.message
        if isinstance(message, Hello):
            return self._join(worker, message)
        if isinstance(message, CannotStart):
            if not self._has_joined:
                raise cannot_start(message.failure)
            cause = f"could not go on, on {said.host}: {message.failure.message}"
            return self._lose(worker, flight, cause)
        if flight is None:
            raise WorkerError(f"worker {worker} answered without a call: {message!r:.200}")
        return self._answer(worker, flight, said)

    def _answer(self, worker: int, flight: _Flight, said: Answer) -> Event | None:
        message, call = said.message, flight.call
        if isinstance(message, Stuck):
            return self._lose(worker, flight, message.cause)
        if isinstance(message, VisitFailed):
            return Failed(worker, call, message.failure)
        if isinstance(message, JobDone):
            return Answered(worker, cast(Job, call), message.answer)
        done = cast(Visited, message)
        state = None
        if done.state is not None:
            state = StateRef(next(self._keys), done.state.bytes, done.state.meta)
            self._hops[state.key] = done.state
        return Done(worker, cast(VisitCall, call), done.report, state, host=said.host)

    def _join(self, worker: int, message: Hello) -> Joined:
        charter = self.session.charter
        store, seen = charter.store, charter.seen(worker)
        if store is not None:
            if not store.exists(seen):
                raise UsageError(
                    "the store must be seen by the driver as by Spark's executors, but what the "
                    f"executor on {message.info.host} wrote into {store.url} is not there. Use a "
                    "directory that all machines share, mounted at the same path."
                )
            store.remove(seen)
        self._has_joined = True
        self._ready.add(worker)
        return Joined(message.info)

    def _lose(
        self, worker: int, flight: _Flight | None, cause: str, *, is_memory: bool = False
    ) -> Lost | None:
        """A worker is not ready any more; its thread tries to get it ready again."""
        cause = self._verdict(flight) or cause
        self._trouble = f"The last one {cause}."
        if worker not in self._ready:
            return None
        self._ready.discard(worker)
        return Lost(worker, flight.call if flight else None, cause, is_memory)

    def _verdict(self, flight: _Flight | None) -> str | None:
        """Why a task has ended its own process, if it has."""
        charter = self.session.charter
        if flight is None or charter.store is None:
            return None
        path = charter.verdict(flight.number)
        with contextlib.suppress(StoreError):
            return charter.store.read(path).decode() if charter.store.exists(path) else None
        return None

    def _give_up(self, worker: int) -> None:
        del self._workers[worker]
        text = (
            f"workers must be able to start, but {START_ATTEMPTS} in a row could not. "
            f"{self._trouble}"
        )
        if not self._workers:
            raise WorkerError(text)
        logger.warning("the run goes on with fewer workers: %s", text)

    def _remove(self, hop: Hop | None) -> None:
        if hop is not None and self.session.charter.store is not None:
            self.session.charter.store.remove(hop.path)
