"""On a node of Ray: one worker process, as the local backend starts and watches it, and its calls.

The actor does not run user code: that may end, hang or fill the memory of a process of its own,
whose state the actor then still has, and of which it knows how it ended.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from cerebro.backend.base import (
    Answered,
    Done,
    Event,
    Failed,
    Joined,
    Lost,
    Opening,
    Posted,
    Source,
    StateRef,
    WorkerInfo,
)
from cerebro.backend.limits import Limits
from cerebro.backend.local import LocalBackend
from cerebro.backend.ray.orders import Answer, Ended, InStore, Message, Order, Visited
from cerebro.backend.wire import JobDone, VisitFailed
from cerebro.errors import CerebroError, WorkerError
from cerebro.train.visit import VisitCall

_STOP_S = 5.0
_MISSED = "died before the visit reached it"


@dataclass(slots=True, eq=False)
class _Asked:
    """An order that waits for its answer."""

    order: Order
    content: memoryview | None
    event: Future[Event] = field(default_factory=Future)


class _Closed(Exception):
    """Nobody needs the process any more."""


class Station:
    """A worker process and the thread that looks after it.

    Args:
        worker: Its number in the run.
        opening: What the process opens.
        log_dir: Where its output goes; default to ours.
    """

    def __init__(
        self, worker: int, opening: Opening, limits: Limits, log_dir: str | None = None
    ) -> None:
        self._worker = worker
        self._opening = opening
        self._backend = LocalBackend(log_dir=log_dir, limits=limits, first=worker)
        self._changed = threading.Condition()
        self._life = -1
        self._info: WorkerInfo | None = None
        self._ends: dict[int, Ended] = {}
        self._error: CerebroError | None = None
        self._asked: _Asked | None = None
        self._left: StateRef | None = None
        self._batches = 0
        self._is_over = threading.Event()
        threading.Thread(target=self._attend, name="cerebro-station", daemon=True).start()

    def join(self) -> tuple[WorkerInfo, int]:
        """Wait until a process is ready: who it is, and its life. Raises if none can be."""
        with self._changed:
            self._changed.wait_for(lambda: self._info is not None or self._error is not None)
            if self._info is None:
                raise self._error or WorkerError("a worker has ended.")
            return self._info, self._life

    def watch(self, life: int) -> Ended:
        """Wait until that process has ended."""
        with self._changed:
            self._changed.wait_for(lambda: life in self._ends or self._error is not None)
            return self._ends.get(life) or Ended(life, f"cannot go on: {self._error}")

    def run(self, order: Order, content: memoryview | None) -> tuple[Answer, memoryview | None]:
        """Carry out an order; the state it leaves stays as it is until the next one begins."""
        asked = _Asked(order, content)
        with self._changed:
            if self._error is not None:
                return self._answer(Ended(order.life, f"cannot go on: {self._error}")), None
            self._asked = asked
            self._backend.post(asked)
        event = asked.event.result()
        content = None
        if isinstance(event, Done):
            message, content = self._done(event)
        else:
            message = _message_of(event, order.life)
        return self._answer(message), content

    def close(self) -> None:
        """End the process, and the waiting of whoever waits for it."""
        self._backend.post(_Closed())
        self._is_over.wait(_STOP_S)

    def _done(self, event: Done) -> tuple[Message, memoryview | None]:
        if event.state is None:
            return Visited(event.report, None), None
        state = InStore(event.state.bytes, event.state.meta)
        return Visited(event.report, state), self._backend.view(event.state)

    def _answer(self, message: Message) -> Answer:
        before, self._batches = self._batches, self._backend.progress()
        # Another process counts from 0 on.
        return Answer(message, self._batches - (before if before <= self._batches else 0))

    # What follows is the thread's.

    def _attend(self) -> None:
        backend = self._backend
        try:
            backend.start(self._opening, 1)
            while True:
                for event in backend.events():
                    self._take(event)
        except _Closed:
            self._end(WorkerError("the worker was stopped."))
        except CerebroError as error:
            self._end(error)
        except Exception as error:
            self._end(WorkerError(f"a worker cannot be looked after: {error!r}"))
        finally:
            backend.stop()
            self._is_over.set()

    def _take(self, event: Event) -> None:
        if isinstance(event, Posted):
            if isinstance(event.payload, _Closed):
                raise event.payload
            if isinstance(event.payload, _Asked):
                self._submit(event.payload)
        elif isinstance(event, Joined):
            with self._changed:
                self._life += 1
                self._info = event.info
                self._changed.notify_all()
        else:
            if isinstance(event, Lost):
                self._lose(event)
            if isinstance(event, Done) and event.state is not None:
                self._left = event.state
            self._settle(event)

    def _submit(self, asked: _Asked) -> None:
        order, call = asked.order, asked.order.call
        if asked is not self._asked:
            # The process has died meanwhile, and whoever asked has been told.
            return
        if self._left is not None:
            self._backend.release(self._left)
            self._left = None
        if self._info is None or order.life != self._life:
            self._settle(Lost(self._worker, call, _MISSED, is_machine=True))
            return
        source: Source = None
        if isinstance(order.source, InStore):
            assert asked.content is not None  # noqa: S101
            source = self._backend.put(asked.content, order.source.meta)
        else:
            source = order.source
        is_training = isinstance(call, VisitCall) and call.is_training
        self._backend.submit(self._worker, call, source, consume=is_training and source is not None)
        if isinstance(source, StateRef) and not is_training:
            self._left = source

    def _settle(self, event: Event) -> None:
        with self._changed:
            asked, self._asked = self._asked, None
        if asked is not None:
            asked.event.set_result(event)

    def _lose(self, lost: Lost) -> None:
        with self._changed:
            if self._info is not None:
                self._ends[self._life] = _ended(lost, self._life)
                self._info = None
                self._changed.notify_all()

    def _end(self, error: CerebroError) -> None:
        with self._changed:
            self._error, self._info = error, None
            self._changed.notify_all()
        self._settle(Lost(self._worker, None, f"cannot go on: {error}"))


def _message_of(event: Event, life: int) -> Message:
    if isinstance(event, Answered):
        return JobDone(event.answer)
    if isinstance(event, Failed):
        return VisitFailed(event.failure)
    assert isinstance(event, Lost)  # noqa: S101
    return _ended(event, life)


def _ended(lost: Lost, life: int) -> Ended:
    return Ended(life, lost.cause, lost.is_memory, lost.is_machine)
