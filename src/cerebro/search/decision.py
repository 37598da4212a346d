"""What a search sees and what it decides: plain values, carried out by whoever runs the trials."""

from __future__ import annotations

from typing import NamedTuple, TypeAlias

from cerebro.types import Metrics, Params, TrialStatus


class Report(NamedTuple):
    """Where a trial stands, at the end of a training visit or of an epoch."""

    trial: int
    #: Epochs behind it; the one that has just been evaluated is among them.
    epochs: int
    #: Training visits behind it.
    visits: int
    #: Of the visit (`train_loss`, …), or of the epoch (`val_accuracy`, … too).
    metrics: Metrics


class Outcome(NamedTuple):
    """How a trial ended, for a sampler."""

    #: One for each objective, from the trial's best epoch; None where there is none.
    values: tuple[float, ...] | None
    status: TrialStatus
    #: One for each constraint: how far it is from being met; not above 0 where it is.
    violations: tuple[float, ...] = ()


class Promote(NamedTuple):
    """The trial may train until so many epochs are behind it; then it waits again."""

    trial: int
    epochs: int


class Pause(NamedTuple):
    """The trial waits, from its next visit on, until it is promoted."""

    trial: int
    reason: str


class Stop(NamedTuple):
    """The trial is not trained any more."""

    trial: int
    reason: str


class Clone(NamedTuple):
    """The trial ends; a new one with a copy of another's state and these params takes its place."""

    trial: int
    source: int
    params: Params
    reason: str


class Halt(NamedTuple):
    """The whole run ends: what it was for is reached, or used up."""

    reason: str


Decision: TypeAlias = Promote | Pause | Stop | Clone | Halt
