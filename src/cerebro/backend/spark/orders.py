"""What the driver and the tasks of its Spark jobs say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from cerebro.backend.base import Job
from cerebro.backend.limits import Limits
from cerebro.backend.spark.hops import Hop
from cerebro.backend.wire import CannotStart, Hello, JobDone, VisitFailed
from cerebro.storage import Store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.layout import HOPS
from cerebro.train.visit import VisitCall, VisitReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What every process of the executors gets once, by broadcast."""

    #: Of one start of one backend.
    token: str
    #: Of Cerebro on the driver.
    version: str
    #: The pickled `Opening`.
    opening: bytes
    #: Where states and results go; None where there are none.
    store: Store | None
    limits: Limits
    #: Variables of the driver's environment that decide what is computed.
    environment: Mapping[str, str]
    #: What copies of shards may take on a machine.
    cache_bytes: int

    @property
    def probe(self) -> str:
        """A file that the driver wrote, holding the token."""
        return f"{HOPS}/{self.token}.probe"

    def seen(self, worker: int) -> str:
        """The file that a worker's first task writes back."""
        return f"{HOPS}/{self.token}-{worker}.seen"

    def verdict(self, number: int) -> str:
        """The file that says why a task has ended its own process."""
        return f"{HOPS}/{self.token}-{number}.hung"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What one task has to do: a call, or to get ready for calls."""

    token: str
    worker: int
    #: Of all orders under one charter.
    number: int
    call: VisitCall | Job | None = None
    source: Hop | CheckpointRef | None = None


@dataclass(frozen=True, slots=True)
class Visited:
    """A visit is done; a training visit leaves a state."""

    report: VisitReport
    state: Hop | None


@dataclass(frozen=True, slots=True)
class Stuck:
    """An earlier attempt at this order has hung, so it was not tried again."""

    cause: str


Message: TypeAlias = Hello | CannotStart | Visited | JobDone | VisitFailed | Stuck


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a task found, and where it ran."""

    message: Message
    host: str
    #: The process that all Python processes of one executor come from.
    executor: int
    #: Batches that were begun.
    batches: int
