"""Test and predict: what a framework is asked about a shard, and what it answers."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.score.columns import Predicted
from cerebro.train.visit import Batches, Sums
from cerebro.types import Json, Params

#: Rows in a batch where neither the caller nor the task says how many.
BATCH_SIZE = 256


class ScoreMode(enum.StrEnum):
    """What is wanted of a model: how good it is, or what it says."""

    TEST = "test"
    PREDICT = "predict"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreCall:
    """One shard for several models. `params` has one entry for each of them."""

    mode: ScoreMode
    params: tuple[Params, ...]
    batch_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberScore:
    """What one model made of a shard."""

    #: Of a test: what adds up to exact means over all rows.
    sums: Sums = field(default_factory=dict)
    #: Of a test, in place of sums: for a task that makes metrics of those of its batches itself.
    batches: Batches | None = None
    #: Of a prediction: one entry a row, in the order of the shard.
    columns: Mapping[str, Predicted] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreReport:
    """What a framework says about a shard: one member for each of the call's models."""

    rows: int
    members: tuple[MemberScore, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialWeights:
    """The state of a trial, in a checkpoint of its own or in one of its stack."""

    #: Root of the run's store.
    store: str
    ref: CheckpointRef
    trial: int

    @property
    def digest(self) -> str:
        return f"{self.ref.sha256}:{self.trial}"


@dataclass(frozen=True, slots=True, kw_only=True)
class FileWeights:
    """A file with a model or its weights."""

    path: str
    sha256: str
    #: What belongs to the state and is no tensor, where the file is a checkpoint of ours.
    meta: Mapping[str, Json] | None = None

    @property
    def digest(self) -> str:
        return self.sha256


Weights: TypeAlias = TrialWeights | FileWeights


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One of several models that see each batch together."""

    #: "t0003", or the name of a file without its ending.
    name: str
    params: Params
    weights: Weights
    #: About what it takes in memory: decides how many are held at once.
    bytes: int
