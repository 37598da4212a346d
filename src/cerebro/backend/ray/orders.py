"""What the driver and its actors on Ray say to each other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from cerebro.backend.base import Job, WorkerInfo
from cerebro.backend.limits import Limits
from cerebro.backend.ray.places import Place
from cerebro.backend.wire import JobDone, VisitFailed
from cerebro.errors import CerebroError
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.gang.place import GangPlace
from cerebro.train.visit import VisitCall, VisitReport
from cerebro.types import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Charter:
    """What every actor gets once; it lies in the object store."""

    #: The pickled `Opening`.
    opening: bytes
    threads: int
    limits: Limits
    #: What is read and written, by name.
    places: Mapping[str, Place]
    #: Variables of the driver's environment that decide what is computed.
    environment: Mapping[str, str]
    #: What copies of shards may take on a machine.
    cache_bytes: int
    #: Which machine the driver is on; there, where it finds modules, and where logs go.
    machine: str
    paths: tuple[str, ...]
    log_dir: str | None
    #: Whether nodes that do not see all places can be used.
    is_relayable: bool = True
    #: Each worker is such a gang; None: it trains alone.
    gang: GangPlace | None = None


@dataclass(frozen=True, slots=True)
class InStore:
    """A state that comes beside the order, as an object of Ray's store."""

    bytes: int
    meta: Mapping[str, Json]


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A call for the process that an actor looks after."""

    #: Which of its processes is meant: they are counted.
    life: int
    call: VisitCall | Job
    source: InStore | CheckpointRef | None = None


@dataclass(frozen=True, slots=True)
class Placed:
    """An actor has found room."""

    #: Of Ray, in hexadecimal.
    node: str
    host: str
    #: Its own process, not the one that does the work.
    pid: int
    #: "host:port" where the other ranks of its gang find it; "": it has none.
    address: str = ""


@dataclass(frozen=True, slots=True)
class Present:
    """A process is ready."""

    info: WorkerInfo
    life: int
    #: Whether what the driver writes into the store is found here.
    sees_store: bool


@dataclass(frozen=True, slots=True)
class Refused:
    """No process can be made ready."""

    error: CerebroError
    #: On another node one may be.
    is_of_node: bool = False


@dataclass(frozen=True, slots=True)
class Blind:
    """The store or the dataset is not seen here as the driver sees it: a relay is needed."""

    host: str


@dataclass(frozen=True, slots=True)
class Ended:
    """A process is gone."""

    life: int
    #: To follow "worker 3 ".
    cause: str
    is_memory: bool = False
    #: Nothing that its order has done.
    is_machine: bool = False


@dataclass(frozen=True, slots=True)
class RankEnded:
    """The process of a rank other than the leader is gone."""

    #: Which of the processes of that rank: they are counted.
    turn: int
    #: Its exit code (minus the signal that ended it); None: it was not started at all.
    code: int | None


@dataclass(frozen=True, slots=True)
class Visited:
    """A visit is done; a training visit leaves a state, which is the second answer to the order."""

    report: VisitReport
    state: InStore | None


Message: TypeAlias = Visited | JobDone | VisitFailed | Ended


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an order."""

    message: Message
    #: Batches that were begun since the answer before.
    batches: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """A state is to become a checkpoint."""

    store: str
    unit: int
    visits: int
    attempt: int
    parent: str | None
    state: InStore


#: A reference to an object of Ray's store, or a handle of an actor.
Handle: TypeAlias = Any
