"""A worker of the Spark backend as the driver sees it: a thread whose jobs have one task each."""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

from cerebro.backend.failure import describe_failure
from cerebro.backend.spark.context import make_thread
from cerebro.backend.spark.orders import Answer, Charter, Order, Stuck
from cerebro.backend.spark.task import perform
from cerebro.backend.spark.trouble import is_memory, reason_of
from cerebro.backend.spark.wire import decode, encode
from cerebro.backend.wire import CannotStart, Hello, VisitFailed

#: Jobs in a row that may fail to get a worker ready before it is given up.
START_ATTEMPTS = 3


@dataclass(frozen=True, slots=True)
class Broken:
    """A job failed as a whole: its process or executor was lost more often than Spark retries."""

    #: To follow "worker 3 ".
    cause: str
    is_memory: bool = False


@dataclass(frozen=True, slots=True)
class GaveUp:
    """No process could be made ready."""


@dataclass(frozen=True, slots=True)
class Told:
    """What a worker's thread has to say to the driver."""

    worker: int
    said: Answer | Broken | GaveUp


Tell: TypeAlias = Callable[[Told], None]


@dataclass(slots=True, kw_only=True)
class Session:
    """One start of the backend."""

    context: Any
    charter: Charter
    #: The charter as a broadcast variable.
    broadcast: Any
    tell: Tell
    is_stopping: threading.Event = field(default_factory=threading.Event)

    @property
    def group(self) -> str:
        """Jobs that are cancelled together."""
        return f"cerebro-{self.charter.token}"


class SparkWorker:
    """Runs orders one after another, each as a Spark job with one task.

    Spark may place the task anywhere. Its partition is kept in the memory of the executor that ran
    it first, so that Spark prefers this executor later on. A task that ran elsewhere takes its
    place along: a worker does not wait for an executor that others keep busy, or that is gone.
    """

    def __init__(self, index: int, session: Session) -> None:
        self.index = index
        self._session = session
        self._orders: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._place: Any = None
        self._where: tuple[str, int] | None = None
        self._thread = make_thread(self._serve, f"cerebro-spark-{index}")

    def start(self) -> None:
        self._thread.start()

    def give(self, order: bytes) -> None:
        """Carry out a pickled order after those given before."""
        self._orders.put(order)

    def dismiss(self) -> None:
        """End once there is nothing under way."""
        self._orders.put(None)

    def has_ended(self, timeout_s: float) -> bool:
        self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def _serve(self) -> None:
        session = self._session
        # Where the context has ended, the first job says so.
        with contextlib.suppress(Exception):
            session.context.setJobGroup(
                session.group, f"Cerebro worker {self.index}", interruptOnCancel=True
            )
        try:
            is_ready = self._join()
            while is_ready and (order := self._orders.get()) is not None:
                said = self._run(order)
                if not self._say(said):
                    return
                is_ready = _is_well(said) or self._join()
        finally:
            self._leave()

    def _join(self) -> bool:
        """Get a process ready; whether there is one."""
        token = self._session.charter.token
        for attempt in range(START_ATTEMPTS):
            # Orders without a call have numbers below 0.
            number = -(self.index * START_ATTEMPTS + attempt + 1)
            order = Order(token=token, worker=self.index, number=number)
            said = self._run(encode(order))
            if not self._say(said):
                return False
            if isinstance(said, Answer) and isinstance(said.message, Hello):
                return True
        self._say(GaveUp())
        return False

    def _say(self, said: Answer | Broken | GaveUp) -> bool:
        """Tell the driver, unless it listens no more."""
        if self._session.is_stopping.is_set():
            return False
        self._session.tell(Told(self.index, said))
        return True

    def _run(self, order: bytes) -> Answer | Broken:
        session = self._session
        try:
            if self._place is None:
                self._place = session.context.parallelize([self.index], 1).persist()
            function = partial(perform, session.broadcast, order)
            (packed,) = session.context.runJob(self._place, function)
        except Exception as error:
            return Broken(f"was lost: {reason_of(error)}", is_memory(error))
        try:
            answer: Answer = decode(packed)
        except Exception as error:
            # It may hold objects of the task's own that only executors know.
            failure = VisitFailed(describe_failure(error))
            return Answer(message=failure, host="", executor=0, batches=0)
        self._settle((answer.host, answer.executor))
        return answer

    def _settle(self, where: tuple[str, int]) -> None:
        if self._where not in (None, where):
            self._leave()
        else:
            self._where = where

    def _leave(self) -> None:
        """Keep nothing on any executor."""
        if self._place is not None:
            with contextlib.suppress(Exception):
                self._place.unpersist()
        self._place, self._where = None, None


def _is_well(said: Answer | Broken) -> bool:
    """Whether the worker may be given another order."""
    return isinstance(said, Answer) and not isinstance(said.message, CannotStart | Stuck)
