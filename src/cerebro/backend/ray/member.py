"""A worker of the Ray backend as the driver sees it: an actor, and the call it has."""

from __future__ import annotations

import queue
from collections.abc import Callable
from concurrent.futures import Future, wait
from dataclasses import dataclass
from typing import Any

from cerebro.backend.base import Job, Posted, WorkerInfo
from cerebro.backend.ray.cluster import Cluster, call
from cerebro.backend.ray.orders import Handle, Order, Placed
from cerebro.train.visit import VisitCall


@dataclass(slots=True, eq=False)
class Flight:
    """A call that a worker has."""

    call: VisitCall | Job
    #: The state that it will leave, if it trains.
    result: Handle


@dataclass(frozen=True, slots=True)
class Told:
    """Something that was asked of an actor is there, or cannot be had."""

    member: Member
    #: The method that was asked.
    what: str
    #: The call whose answer it is, if it is one.
    flight: Flight | None
    answer: Future[Any]
    #: Whose it is, if it was not asked of the leader of a gang.
    rank: int = 0


class Ear:
    """Hears the answers of all actors, in the order in which they come."""

    def __init__(self) -> None:
        self.told: queue.SimpleQueue[Told | Posted] = queue.SimpleQueue()
        self._awaited: set[Future[Any]] = set()

    def listen(self, ref: Handle, tell: Callable[[Future[Any]], Told]) -> None:
        """Once the answer is there it is told of, from a thread of Ray's."""

        def hear(answer: Future[Any]) -> None:
            self._awaited.discard(answer)
            self.told.put(tell(answer))

        answer: Future[Any] = ref.future()
        self._awaited.add(answer)
        answer.add_done_callback(hear)

    def close(self, patience_s: float) -> None:
        """Let go of all answers.

        Ray numbers objects and actors anew with each connection of a process: what is let go of
        after the next one has begun may be taken for something of that.
        """
        wait(list(self._awaited), patience_s)
        self._awaited.clear()
        while not self.told.empty():
            self.told.get()


class Member:
    """One actor. After it has died there is another one, for the same worker."""

    def __init__(self, index: int, actor: Handle, ear: Ear) -> None:
        self.index = index
        self.actor = actor
        self._ear = ear
        #: Where it is, once Ray has found room for it.
        self.placed: Placed | None = None
        #: Of its process, while that is ready.
        self.info: WorkerInfo | None = None
        self.life = -1
        self.sees_store = False
        self.flight: Flight | None = None

    @property
    def is_ready(self) -> bool:
        return self.info is not None

    @property
    def node(self) -> str:
        return self.placed.node if self.placed is not None else ""

    def begin(self, charter: Handle) -> None:
        """Find a place, and get ready there."""
        self._ask("place", call(self.actor, "place"))
        self.join(charter)

    def join(self, charter: Handle, relay: Handle | None = None) -> None:
        """Get ready, for the first time or again."""
        self._ask("join", call(self.actor, "join", charter, relay))

    def settle(self, placed: Placed, charter: Handle) -> None:
        """Ray has found room for it."""
        self.placed = placed

    def rejoin(self, charter: Handle) -> None:
        """Get ready again, after its process has ended."""
        self.join(charter)

    def explain(self, cause: str, rank: int = 0) -> str:
        """What became of it, as far as that is known here."""
        return cause

    def close(self) -> list[Handle]:
        """End its process; what tells that it has ended."""
        return [call(self.actor, "close")]

    def kill(self, cluster: Cluster) -> None:
        """End its actor at once."""
        cluster.kill(self.actor)
        self.actor = self.flight = None

    def watch(self) -> None:
        """Say when its process has ended."""
        self._ask("watch", call(self.actor, "watch", self.life))

    def ping(self) -> None:
        """Give a sign of life."""
        self._ask("ping", call(self.actor, "ping"))

    def run(self, order: Order, state: Handle | None) -> None:
        """Carry out an order, from a state if it begins with one."""
        answer, result = call(self.actor, "run", order, state, returns=2)
        self.flight = Flight(order.call, result)
        self._ask("run", answer, self.flight)

    def _ask(self, what: str, ref: Handle, flight: Flight | None = None, rank: int = 0) -> None:
        self._ear.listen(ref, lambda answer: Told(self, what, flight, answer, rank))
