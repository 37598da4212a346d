"""What the planner moves: units, and the visits they are made of."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Phase(enum.StrEnum):
    """What a visit does with its shard."""

    TRAIN = "train"
    EVAL = "eval"


class Unit(NamedTuple):
    """Trials that move together, on the workers they need at once.

    An epoch of a unit is a chain of train visits, one per train shard, followed by one eval visit
    per validation shard in any order and on any workers.

    >>> Unit(id=3, trials=(3,), start=3, epochs=5).weight
    1.0
    """

    id: int
    trials: tuple[int, ...]
    start: int  #: shard of the first train visit of epoch 0
    epochs: int
    gang: int = 1  #: workers one visit needs; only 1 for now
    weight: float = 1.0  #: cost of a visit against other units', used until one is measured


class Visit(NamedTuple):
    """One unit on one shard, once: the atom of work.

    >>> Visit(unit=0, epoch=1, step=2, phase=Phase.TRAIN, shard=3, attempt=0).shard
    3
    """

    unit: int
    epoch: int
    step: int  #: position in the epoch's train chain, or the validation shard
    phase: Phase
    shard: int  #: of the train split for TRAIN, of the val split for EVAL
    attempt: int  #: 0 at first, one more after each failure of this visit


def check_unit(unit: Unit) -> None:
    """Raise ValueError unless the unit can be planned."""
    if not unit.trials:
        raise ValueError(f"a unit must hold at least one trial, but unit {unit.id} holds none.")
    if unit.gang != 1:
        raise ValueError(f"`gang == 1` must hold, but got gang={unit.gang} (unit {unit.id}).")
    if unit.epochs < 1 or unit.start < 0 or not 0 < unit.weight < float("inf"):
        raise ValueError(
            "`epochs >= 1`, `start >= 0` and `0 < weight < inf` must hold, but got "
            f"epochs={unit.epochs}, start={unit.start}, weight={unit.weight} (unit {unit.id})."
        )


def check_place(unit: Unit, epoch: int, step: int, shards: int) -> None:
    """Raise ValueError unless a unit can begin there."""
    if not (0 <= epoch <= unit.epochs and 0 <= step <= shards):
        raise ValueError(
            f"`0 <= epoch <= {unit.epochs}` and `0 <= step <= {shards}` must hold, but got "
            f"epoch={epoch}, step={step} (unit {unit.id})."
        )
