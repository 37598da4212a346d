"""Events the planner takes and instructions it gives, and their JSON form.

All are NamedTuples: one is made per decision, and a plan may take ten million of them.
"""

from __future__ import annotations

from typing import Any, NamedTuple, TypeAlias

from cerebro.mop.failures import Cause
from cerebro.mop.visit import Phase, Unit, Visit


class WorkerJoined(NamedTuple):
    """A worker is ready for visits; sent again for a live worker, it replaces what it holds."""

    worker: int
    holds: frozenset[int] = frozenset()  #: train shards in its memory or on its device


class WorkerLost(NamedTuple):
    """A worker is gone; what it was doing is tried again elsewhere."""

    worker: int
    cause: Cause = Cause.LOST  #: MEMORY where the system ended it for want of memory


class UnitAdded(NamedTuple):
    """A unit to finish, from `step` done train visits of `epoch` on.

    `step` equal to the number of train shards leaves that epoch's eval visits; `epoch` equal to
    the unit's epochs says that it is finished already. Units that replace one that failed or was
    stopped go on where they are told to; a unit that is closed may be added again, to go further.
    """

    unit: Unit
    epoch: int = 0
    step: int = 0
    staying: tuple[int, ...] = ()  #: trials that the next epoch begins with, if not all


class VisitDone(NamedTuple):
    """A worker's answer; one that is not awaited (duplicate, late, old attempt) changes nothing."""

    unit: int
    epoch: int
    step: int
    phase: Phase
    attempt: int
    worker: int
    seconds: float


class VisitFailed(NamedTuple):
    """A worker reports that the visit failed; the worker itself lives."""

    unit: int
    epoch: int
    step: int
    phase: Phase
    attempt: int
    worker: int
    cause: Cause
    signature: str


class Durable(NamedTuple):
    """The first `visits` train visits of a unit, over all epochs, are committed."""

    unit: int
    visits: int


class UnitStopped(NamedTuple):
    """The unit is not wanted any more; answers of its running visits will be dropped."""

    unit: int


class UnitPaused(NamedTuple):
    """Nothing more of the unit is started; what runs may end. Stopped, it may be added again."""

    unit: int


class UnitExtended(NamedTuple):
    """A unit is trained until so many epochs are behind it, unless it is meant to already."""

    unit: int
    epochs: int


class UnitReduced(NamedTuple):
    """Only these trials of a unit go on: the next epoch begins without the others.

    Visits of this epoch, those tried again too, have all trials that it began with. A unit that no
    trial stays in is closed at once, like one that is stopped.
    """

    unit: int
    trials: tuple[int, ...]


class Drain(NamedTuple):
    """Start nothing more; what runs may end."""


class Resume(NamedTuple):
    """Start again what is ready, after a Drain."""


class Start(NamedTuple):
    """Run the visit for these trials on these workers."""

    visit: Visit
    trials: tuple[int, ...]
    workers: tuple[int, ...]


class EpochEnded(NamedTuple):
    """All train and eval visits of the epoch are done (not necessarily durable)."""

    unit: int
    epoch: int


class UnitFinished(NamedTuple):
    """All visits of the unit are done."""

    unit: int


class UnitFailed(NamedTuple):
    """The unit is given up; the others go on."""

    unit: int
    reason: str
    cause: Cause  #: of the last failure

    @property
    def diverged(self) -> bool:
        return self.cause is Cause.DIVERGED


class Finished(NamedTuple):
    """No unit is unfinished any more; given again if a unit is added and ends after that."""


class Stalled(NamedTuple):
    """Units are unfinished and no worker is left; the backend says what is waited for."""


Event: TypeAlias = (
    WorkerJoined
    | WorkerLost
    | UnitAdded
    | VisitDone
    | VisitFailed
    | Durable
    | UnitExtended
    | UnitPaused
    | UnitReduced
    | UnitStopped
    | Drain
    | Resume
)
Instruction: TypeAlias = Start | EpochEnded | UnitFinished | UnitFailed | Finished | Stalled
Message: TypeAlias = Event | Instruction

_TYPES: dict[str, type[Message]] = {
    t.__name__: t
    for t in (
        *(WorkerJoined, WorkerLost, UnitAdded, VisitDone, VisitFailed, Durable),
        *(UnitExtended, UnitPaused, UnitReduced, UnitStopped, Drain, Resume),
        *(Start, EpochEnded, UnitFinished, UnitFailed, Finished, Stalled),
    )
}


def _plain(value: object) -> object:
    if isinstance(value, Unit | Visit):
        return {name: _plain(item) for name, item in value._asdict().items()}
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return list(value)
    return str(value) if isinstance(value, Phase | Cause) else value


def _rich(name: str, value: object) -> Any:
    if isinstance(value, dict):
        kind: type[Unit | Visit] = Unit if name == "unit" else Visit
        return kind(**{key: _rich(key, item) for key, item in value.items()})
    if isinstance(value, list):
        return frozenset(value) if name == "holds" else tuple(value)
    if name == "phase":
        return Phase(str(value))
    return Cause(str(value)) if name == "cause" else value


def to_dict(message: Message) -> dict[str, object]:
    """The message as JSON-ready values, its type under "type".

    >>> to_dict(Durable(unit=1, visits=8))
    {'type': 'Durable', 'unit': 1, 'visits': 8}
    """
    fields = {name: _plain(value) for name, value in message._asdict().items()}
    return {"type": type(message).__name__, **fields}


def from_dict(data: dict[str, object]) -> Message:
    """The message that `to_dict` wrote; ValueError where it is not one.

    >>> from_dict({"type": "Start", "visit": {"unit": 0, "epoch": 0, "step": 0, "phase": "train",
    ...            "shard": 0, "attempt": 0}, "trials": [0], "workers": [1]}).visit.phase
    <Phase.TRAIN: 'train'>
    """
    kind = _TYPES.get(str(data.get("type")))
    if kind is None:
        raise ValueError(f"unknown message type {data.get('type')!r}. Known: {', '.join(_TYPES)}.")
    try:
        return kind(**{key: _rich(key, value) for key, value in data.items() if key != "type"})
    except TypeError as error:
        raise ValueError(f"a {kind.__name__} must have {kind._fields}: {error}.") from None
