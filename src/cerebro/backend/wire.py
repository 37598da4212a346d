"""Messages between the local backend and its own worker processes, over a private socket pair."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.backend.arena import Slot
from cerebro.backend.base import Failure, Job, WorkerInfo
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import VisitCall, VisitReport
from cerebro.types import Json


@dataclass(frozen=True, slots=True)
class SlotState:
    """A state in the arena."""

    slot: Slot
    bytes: int
    meta: Mapping[str, Json]


@dataclass(frozen=True, slots=True)
class RunVisit:
    """Driver to worker: run this; `out` is a slot for the result, if it fits."""

    call: VisitCall
    source: SlotState | CheckpointRef | None
    out: Slot | None


@dataclass(frozen=True, slots=True)
class RunJob:
    """Driver to worker: run this, and say what it gives."""

    job: Job


@dataclass(frozen=True, slots=True)
class NeedSlot:
    """Worker to driver: give me a slot of this many bytes; answered by a Slot."""

    bytes: int


@dataclass(frozen=True, slots=True)
class Hello:
    info: WorkerInfo


@dataclass(frozen=True, slots=True)
class CannotStart:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Ending:
    """Worker to driver: I end now, for this; how I end does not say all."""

    cause: str


@dataclass(frozen=True, slots=True)
class VisitDone:
    report: VisitReport
    state: SlotState | None


@dataclass(frozen=True, slots=True)
class JobDone:
    answer: object


@dataclass(frozen=True, slots=True)
class VisitFailed:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Free:
    """Driver to worker: give back memory that is kept for later visits; not answered."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Driver to worker: end."""
