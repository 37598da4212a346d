"""Names and small values shared by every layer."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TypeAlias

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
Params: TypeAlias = Mapping[str, "Json"]
Metrics: TypeAlias = dict[str, float]


class Split(enum.StrEnum):
    """A named part of a dataset."""

    TRAIN = "train"
    VAL = "val"
    TEST = "test"
    PREDICT = "predict"


class Mode(enum.StrEnum):
    """Whether the larger or the smaller metric is better."""

    MAX = "max"
    MIN = "min"


class TrialStatus(enum.StrEnum):
    """Where a trial stands; the last five are final."""

    PENDING = "pending"
    RUNNING = "running"
    #: It waits, for a promotion or for a person.
    PAUSED = "paused"
    FINISHED = "finished"
    FAILED = "failed"
    OUT_OF_MEMORY = "out_of_memory"
    DIVERGED = "diverged"
    STOPPED = "stopped"

    @property
    def is_final(self) -> bool:
        return self not in (TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED)

    @property
    def is_failure(self) -> bool:
        """Whether it ended without a result worth ranking."""
        return self in (TrialStatus.FAILED, TrialStatus.OUT_OF_MEMORY, TrialStatus.DIVERGED)


def trial_id(number: int) -> str:
    """The name of a trial in files and tables.

    >>> trial_id(7)
    't0007'
    """
    return f"t{number:04d}"


def stack_unit(first: int) -> int:
    """The unit that is a stack, by the number of its first trial, and back.

    The unit of a trial alone is the trial's number: a stack and its first trial are two units.

    >>> stack_unit(7), stack_unit(-8)
    (-8, 7)
    """
    return ~first


def unit_id(unit: int) -> str:
    """The name of a unit in files: that of a trial, or of a stack.

    >>> unit_id(7), unit_id(stack_unit(7))
    ('t0007', 's0007')
    """
    return trial_id(unit) if unit >= 0 else f"s{stack_unit(unit):04d}"
