"""What a run reports, in the order it happens.

Times ending in ``_s`` are seconds; ``time_s``, ``start_s`` and ``end_s`` count from the start of
the driver process. ``replayed`` marks what an earlier process of the same run already reported.
A visit is of one trial, or of a stack of trials that a worker trains as one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from cerebro.track.efficiency import Summary
from cerebro.track.graph import GraphNode
from cerebro.track.ranking import Criteria
from cerebro.types import Metrics, Mode, Params, TrialStatus

Losses: TypeAlias = Sequence[float] | npt.NDArray[np.float32] | npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunStarted:
    """The first record. ``trials`` is how many are planned, or 0 when nobody knows.

    ``is_open`` where results decide how far trials are trained. ``budget_s`` is when the time that
    the run may take is over, ``max_epochs`` what all trials together may be trained.
    """

    run: str
    workers: int
    trials: int
    epochs: int
    train_shards: int
    val_shards: int
    metric: str
    mode: Mode
    resumed: bool = False
    is_open: bool = False
    budget_s: float | None = None
    max_epochs: int | None = None
    #: further metrics to look at, each with its mode, and the largest values that metrics may have
    objectives: tuple[tuple[str, Mode], ...] = ()
    constraints: Mapping[str, float] = field(default_factory=dict)
    #: trials of each configuration; with folds each holds out another part of the data
    repeats: int = 1
    is_folded: bool = False
    #: of each worker, where it is a gang
    ranks: int = 1

    @property
    def criteria(self) -> Criteria:
        """What its trials are ranked by."""
        return Criteria(
            metric=self.metric,
            mode=self.mode,
            others=self.objectives,
            constraints=self.constraints,
            repeats=self.repeats,
            is_folded=self.is_folded,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialAdded:
    """A trial exists; sent again when a run resumes.

    ``proposal`` is the configuration that it tries for the ``repeat``-th time, counted from 0; None
    for a trial of its own. A copy of ``parent`` has ``parent_epochs`` epochs behind it from the
    start; those are told of the parent alone.
    """

    trial: int
    params: Params
    proposal: int | None = None
    repeat: int = 0
    parent: int | None = None
    parent_epochs: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitStarted:
    """A visit was handed to a worker."""

    trials: tuple[int, ...]
    epoch: int
    step: int
    phase: str
    shard: int
    worker: int
    time_s: float


@dataclass(frozen=True, slots=True)
class MemberVisit:
    """What a visit did for one of its trials.

    ``losses`` are those of the training steps, ``first_step`` is the trial's global number of the
    first of them, ``metrics`` are means over the visit weighted by rows.
    """

    losses: Losses = ()
    first_step: int = 0
    metrics: Metrics = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class VisitFinished:
    """A visit was answered; ``members`` has one entry for each of ``trials``, in their order.

    >>> one = MemberVisit(losses=(0.7, 0.6), first_step=0, metrics={"loss": 0.65})
    >>> v = VisitFinished(trials=(0,), epoch=0, step=0, phase="train", shard=3, worker=1,
    ...                   start_s=0.0, end_s=1.0, compute_s=0.9, data_s=0.0, hop_s=0.0, rows=64,
    ...                   members=(one,))
    >>> v.shard
    3
    """

    trials: tuple[int, ...]
    epoch: int
    step: int
    phase: str
    shard: int
    worker: int
    start_s: float
    end_s: float
    #: Forward, backward and update, or scoring.
    compute_s: float
    #: Opening, checking and ordering the shard.
    data_s: float
    hop_s: float
    rows: int
    members: tuple[MemberVisit, ...]
    #: Waiting for the next batch: gathering, moving, decoding and augmenting its rows.
    load_s: float = 0.0
    #: Idle before the visit until a checkpoint was durable.
    checkpoint_s: float = 0.0
    #: Spent waiting for other ranks of a gang.
    comm_s: float = 0.0
    #: The model of the first of the trials, where the visit wrote it down.
    graph: Sequence[GraphNode] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class EpochFinished:
    """All visits of a trial's epoch are done and durable."""

    trial: int
    epoch: int
    metrics: Metrics
    seconds: float
    durable_s: float = 0.0
    replayed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A trial reached a final status; ``by`` is the person who said so, if one did."""

    trial: int
    status: TrialStatus
    error: str | None = None
    replayed: bool = False
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialChanged:
    """A trial waits, or goes on; ``by`` is the person who said so, if one did.

    With ``is_held`` it waits wherever it stands, else for a promotion.
    """

    trial: int
    status: TrialStatus
    is_held: bool = False
    replayed: bool = False
    by: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerChanged:
    """A worker joined or was lost."""

    worker: int
    alive: bool
    cause: str | None
    time_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinished:
    """The last record."""

    summary: Summary


Record: TypeAlias = (
    RunStarted
    | TrialAdded
    | VisitStarted
    | VisitFinished
    | EpochFinished
    | TrialFinished
    | TrialChanged
    | WorkerChanged
    | RunFinished
)
