"""What the planner knows about one unit: one slotted record, none per visit."""

from __future__ import annotations

from math import log2
from typing import TYPE_CHECKING

from cerebro.mop.failures import History
from cerebro.mop.visit import Unit

if TYPE_CHECKING:
    from cerebro.mop.speeds import Pace

# Seconds that a unit of weight counts for until a visit is measured: longer than any real visit,
# so that every unit is measured early and the longest-first order is then by real costs.
UNMEASURED_S = 1e12
# How much of each new measurement goes into a unit's seconds per visit: a slow first visit is
# forgotten, and what is not yet known of fast and slow workers is averaged out.
_SMOOTHING = 0.125
_RUNGS_PER_OCTAVE = -32
_NONE = History()


class UnitState:
    """The progress of one unit.

    >>> state = UnitState(Unit(0, (0,), 0, epochs=2), train_shards=4)
    >>> state.advance(3.0)
    >>> state.step, state.done, state.remaining_s()
    (1, 1, 21.0)
    """

    __slots__ = (
        "closed",
        "durable",
        "entry",
        "epoch",
        "evals",
        "evals_left",
        "histories",
        "id",
        "is_raw",
        "is_warm",
        "left",
        "measured_by",
        "measured_s",
        "paused",
        "shard",
        "start",
        "staying",
        "step",
        "total",
        "trials",
        "unit",
        "visit_s",
        "work",
    )

    def __init__(self, unit: Unit, train_shards: int, epoch: int = 0, step: int = 0) -> None:
        self.unit = unit
        self.id = unit.id
        #: trials of this epoch's visits, and of the next epoch's
        self.trials = self.staying = unit.trials
        self.start = unit.start
        #: epoch now under way; unit.epochs when finished
        self.epoch = epoch
        #: train visits done in this epoch
        self.step = step
        #: train visits in all epochs: all of them, those not done, those durable
        self.total = unit.epochs * train_shards
        self.left = self.total - epoch * train_shards - step
        self.durable = self.done
        #: eval visits of this epoch that wait for a worker (last one first), and that are not done
        self.evals: list[int] = []
        self.evals_left = 0
        #: train shard of the visit that is ready; -1 for eval visits, which no worker holds
        self.shard = -1
        #: this unit's entry in the ready queues; None when nothing of it is ready
        self.entry: tuple[int, int, UnitState] | None = None
        #: failures of visits of the current phase, by step
        self.histories: dict[int, History] | None = None
        #: finished, failed or stopped
        self.closed = epoch >= unit.epochs
        #: nothing of it is started
        self.paused = False
        #: seconds a train visit takes on a worker of speed 1, smoothed; 0.0 until it is measured
        self.visit_s = 0.0
        #: the last measurement: by whom, seconds, whether it was not that worker's first visit
        self.measured_by: Pace | None = None
        self.measured_s = 0.0
        self.is_warm = False
        #: whether `visit_s` is as measured, by a worker whose speed was not known
        self.is_raw = False
        #: seconds of what is left, as counted in Balance.work
        self.work = 0.0

    @property
    def done(self) -> int:
        """Train visits done in all epochs."""
        return self.total - self.left

    def advance(self, seconds: float) -> None:
        """Count one more train visit as done; seconds on a worker of speed 1."""
        self.step += 1
        self.left -= 1
        self.histories = None
        known = self.visit_s
        self.visit_s = known + _SMOOTHING * (seconds - known) if known else seconds

    def end_epoch(self) -> None:
        """The next epoch begins, with the trials that stay."""
        self.epoch += 1
        self.step = 0
        self.histories = None
        if self.trials != self.staying:
            # Its visits take less from now on, whoever runs them: nothing to compare workers by.
            self.trials, self.measured_by = self.staying, None

    def remaining_s(self) -> float:
        """How long the unit will still take: its visits left x what one takes."""
        return (self.left + self.evals_left) * (self.visit_s or self.unit.weight * UNMEASURED_S)

    def rung(self) -> int:
        """The remaining time on a scale of steps of about 2%, lower for longer."""
        # The tiny addend admits 0, which a clock too coarse for a visit may report.
        return int(_RUNGS_PER_OCTAVE * log2(self.remaining_s() + 1e-9))

    def reduce(self, trials: tuple[int, ...]) -> None:
        """Only these trials stay from the next epoch on."""
        if not set(trials) <= set(self.staying):
            raise ValueError(
                f"trials leave a unit and none joins it, but got {trials} of {self.staying} "
                f"(unit {self.id})."
            )
        self.staying = trials

    def extend(self, epochs: int, train_shards: int) -> None:
        """It is trained until so many epochs are behind it, more than before."""
        more = (epochs - self.unit.epochs) * train_shards
        self.unit = self.unit._replace(epochs=epochs)
        self.total += more
        self.left += more

    def history(self, step: int) -> History:
        """The failures of a visit of the current phase."""
        return self.histories.get(step, _NONE) if self.histories else _NONE

    def attempt(self, step: int) -> int:
        """The attempt number of the next start of a visit of the current phase."""
        return self.history(step).attempts
