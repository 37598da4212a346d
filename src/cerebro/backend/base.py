"""The seam between the driver and the workers."""

from __future__ import annotations

import enum
import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, cast

from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.store import Store
from cerebro.task import Task
from cerebro.train.gang.place import GangPlace
from cerebro.train.runner import VisitRunner
from cerebro.train.visit import VisitCall, VisitReport
from cerebro.types import Json


class Runner(Protocol):
    """What a worker has opened once, and carries out its calls with."""

    @property
    def device(self) -> str:
        """The kind of device used, e.g. "cpu"."""
        ...

    def versions(self) -> Mapping[str, str]: ...

    def describe(self) -> tuple[str, str]:
        """The name of what the user wrote, and a SHA-256 of its source or ""."""
        ...

    def free(self) -> None:
        """Give back memory that is kept for later calls."""
        ...

    def close(self) -> None:
        """Give back what it changed in this process."""
        ...


class Opening(Protocol):
    """What every worker gets once; it travels there, and is opened there."""

    @property
    def task(self) -> object:
        """What the user wrote: if something cannot travel, it is in here."""
        ...

    @property
    def threads(self) -> int: ...

    def open(self, worker: int) -> Runner: ...


class Job(Protocol):
    """A call that leaves no state behind. It travels to a worker, its answer travels back."""

    def run(self, runner: Any) -> object:
        """Called on the worker, with what that has opened."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Setup:
    """The opening of workers that train and evaluate a task."""

    #: The task itself, or `module:Class` / `file.py:Class` for workers to import.
    task: Task | str
    #: Directory of the prepared dataset, and the digest it must have.
    data: str
    data_digest: str | None = None
    #: Root of the run's store: where checkpoints are loaded from.
    store: str
    device: str = "auto"
    threads: int = 1
    #: Several workers in the place of each; None: one.
    gang: GangPlace | None = None

    def open(self, worker: int) -> VisitRunner:
        if self.gang is not None and self.gang.size > 1:
            return self._lead(worker)
        return VisitRunner(
            self.task,
            self.data,
            data_digest=self.data_digest,
            store=self.store,
            device=self.device,
            threads=self.threads,
            worker=worker,
        )

    def _lead(self, worker: int) -> VisitRunner:
        """The other ranks are started before this process takes its time to import torch."""
        first_seat = worker * cast(GangPlace, self.gang).local
        gathering = importlib.import_module("cerebro.backend.gang.gathering")
        gathered = gathering.Gathering(self, first_seat)
        try:
            leader = importlib.import_module("cerebro.backend.gang.leader")
        except BaseException:
            gathered.end()
            raise
        return cast(VisitRunner, leader.GangRunner(self, gathered, first_seat))


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInfo:
    """Who a worker is and what it found."""

    worker: int
    pid: int
    host: str
    device: str
    versions: Mapping[str, str]
    #: SHA-256 of the task's source, or "" where it cannot be read.
    task_digest: str = ""
    task_name: str = ""


@dataclass(frozen=True, slots=True)
class StateRef:
    """A unit's state in the backend's memory; only the backend knows what `key` means."""

    key: int
    bytes: int
    meta: Mapping[str, Json] = field(hash=False, compare=False)


class FailureKind(enum.StrEnum):
    """Why a visit gave no result."""

    ERROR = "error"
    DIVERGED = "diverged"
    #: The task or the experiment is wrong, as far as can be told.
    USAGE = "usage"
    #: There was not enough memory, on the device or on the host.
    MEMORY = "memory"
    #: The checkpoint it should start from is damaged.
    CORRUPT = "corrupt"
    #: The state it should start from is gone: with the machine that had it.
    LOST_STATE = "lost state"
    #: Nothing later can succeed either (a damaged shard, a full disk).
    FATAL = "fatal"


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """A visit's failure as plain text: exceptions of user code may not travel."""

    kind: FailureKind
    message: str
    traceback: str
    #: Equal for two failures of the same cause.
    signature: str
    #: Name of the exception's class.
    error: str
    #: Whether the visit may be tried with a smaller micro batch (`VisitCall.smaller_micro_batch`).
    is_splittable: bool = False
    #: Whether its process can do nothing any more: its GPU has failed.
    is_spent: bool = False


@dataclass(frozen=True, slots=True)
class Joined:
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class Done:
    worker: int
    call: VisitCall
    report: VisitReport
    #: The state after a training visit; None after an evaluation.
    state: StateRef | None
    #: Where it ran, if its worker is not always in the same place.
    host: str = ""


@dataclass(frozen=True, slots=True)
class Answered:
    worker: int
    call: Job
    answer: object


@dataclass(frozen=True, slots=True)
class Failed:
    worker: int
    call: VisitCall | Job
    failure: Failure


@dataclass(frozen=True, slots=True)
class Lost:
    """A worker is gone; `call` is what it had to do, if anything."""

    worker: int
    call: VisitCall | Job | None
    #: What became of it, to follow "worker 3 ": "was killed by SIGSEGV".
    cause: str
    #: The system has killed it for want of memory.
    is_memory: bool = False
    #: Its machine, its GPU or whoever looked after it was gone: nothing that its call has done.
    is_machine: bool = False


@dataclass(frozen=True, slots=True)
class Posted:
    """Something another thread wants the driver's loop to see."""

    payload: object


Event: TypeAlias = Joined | Done | Answered | Failed | Lost | Posted
Source: TypeAlias = StateRef | CheckpointRef | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveRequest:
    """Where a state becomes durable."""

    store: Store
    unit: int
    visits: int
    attempt: int
    parent: str | None


class Backend(Protocol):
    """Starts workers, carries visits and states; decides nothing.

    Every submitted visit is answered by exactly one Done, Failed or Lost, a job by an Answered,
    Failed or Lost. Workers may join and be lost at any time, under numbers seen before or new; one
    that is lost joins again, or not. If none is left and none can come, `events` raises.

    A state stays readable until it is released, unless the machine that has it is lost: then a
    visit that should start from it fails as LOST_STATE, and `save` raises StateLostError. It is
    released like any other. `save` and `post` may be called from any thread, the rest from one.
    """

    @property
    def ends_visits(self) -> bool:
        """Whether `stop` ends visits for good: none still writes to the store after it."""
        ...

    def start(self, setup: Opening, workers: int) -> None:
        """Start workers; a Joined event follows for each that is ready."""
        ...

    def submit(
        self,
        worker: int,
        call: VisitCall | Job,
        source: Source,
        *,
        consume: bool = False,
    ) -> None:
        """Run a visit, or a job, on a worker that has joined and is idle.

        With `consume` the source is given up: the visit may train in its memory, without a copy.
        However the visit ends, the reference must not be used, nor released, any more.
        """
        ...

    def events(self) -> list[Event]:
        """What happened since; waits until there is something."""
        ...

    def post(self, payload: object) -> None:
        """Make `events` return a Posted with this payload."""
        ...

    def progress(self) -> int:
        """Batches, or rows, that the workers there are have begun; from any thread."""
        ...

    def save(self, state: StateRef, request: SaveRequest) -> CheckpointRef:
        """Commit a state to the store; returns once it is durable.

        Raises:
            StateLostError: the state is gone. Nothing of it counts; files of it may be left.
        """
        ...

    def release(self, state: StateRef) -> None:
        """The state is not needed any more."""
        ...

    def stop(self) -> None:
        """End all workers at once and give everything back. Idempotent."""
        ...
