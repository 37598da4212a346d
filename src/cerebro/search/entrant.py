"""A trial as a search sees it: how far it is, how far it may go, and its best epoch so far."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from cerebro.search.decision import Outcome
from cerebro.types import Metrics, Mode, Params, TrialStatus


@dataclass(slots=True)
class Entrant:
    """One trial of a search; changed in place.

    >>> entrant = Entrant(7, {"lr": 0.1}, proposal=3, repeat=0, limit=9, epochs=0)
    >>> entrant.target = 3
    >>> entrant.epochs = 3
    >>> entrant.is_waiting, entrant.is_under_way
    (True, False)
    """

    trial: int
    params: Params
    #: Which proposal it is a repeat of; None for one that was not proposed.
    proposal: int | None
    repeat: int
    #: Epochs behind it at its end.
    limit: int
    #: Epochs behind it.
    epochs: int
    #: How far its stopper lets it go; how far it may go.
    wish: int = 0
    target: int = 0
    #: Epochs that were begun; training visits behind it.
    begun: int = 0
    visits: int = 0
    #: The metrics of its best epoch.
    best: Metrics | None = field(default=None)
    #: Its final status.
    status: TrialStatus | None = None
    #: A person holds it; its stopper does; it was told to end.
    is_paused: bool = False
    is_held: bool = False
    is_leaving: bool = False

    @property
    def is_waiting(self) -> bool:
        """Whether it goes on only once it is promoted."""
        return self.is_live and (self.is_held or self.epochs >= self.target < self.limit)

    @property
    def is_live(self) -> bool:
        """Whether it has not ended, and was not told to."""
        return self.status is None and not self.is_leaving

    @property
    def is_under_way(self) -> bool:
        """Whether something of it will be heard without anyone's doing."""
        return self.status is None and (self.is_leaving or not (self.is_paused or self.is_waiting))

    def unused(self) -> int:
        """Epochs that it was granted and has not begun."""
        return max(self.target - max(self.begun, self.epochs), 0)


class Judgement:
    """What counts of a trial's epochs: objectives, and bounds that must hold.

    Args:
        objectives: Metrics and their modes; the first one says which epoch is a trial's best.
        constraints: Metrics and the largest value each may have.

    >>> judgement = Judgement([("val_loss", Mode.MIN)], [("size", 10.0)])
    >>> judgement.outcome({"val_loss": 0.5, "size": 12.0}, TrialStatus.FINISHED)
    Outcome(values=(0.5,), status=<TrialStatus.FINISHED: 'finished'>, violations=(2.0,))
    """

    def __init__(
        self,
        objectives: Sequence[tuple[str, Mode]],
        constraints: Sequence[tuple[str, float]] = (),
    ) -> None:
        self._objectives = tuple(objectives)
        self._constraints = tuple(constraints)

    def is_better(self, metrics: Metrics, best: Metrics | None) -> bool:
        """Whether an epoch counts instead of the best so far; never where a value is lacking."""
        if not all(math.isfinite(metrics.get(name, math.nan)) for name, _ in self._objectives):
            return False
        name, mode = self._objectives[0]
        if best is None:
            return True
        return metrics[name] > best[name] if mode is Mode.MAX else metrics[name] < best[name]

    def outcome(self, best: Metrics | None, status: TrialStatus) -> Outcome:
        """How a trial with this best epoch ended, or where it stands."""
        if status.is_failure:
            return Outcome(None, status, (math.inf,) * len(self._constraints))
        if best is None:
            return Outcome(None, status)
        return Outcome(
            tuple(best[name] for name, _ in self._objectives),
            status,
            tuple(best.get(name, math.inf) - bound for name, bound in self._constraints),
        )


def mean_outcome(outcomes: Sequence[Outcome]) -> Outcome:
    """The outcome of a proposal from those of its repeats: means; one that failed counts for all.

    >>> finished = TrialStatus.FINISHED
    >>> mean_outcome([Outcome((1.0,), finished), Outcome((2.0,), finished)]).values
    (1.5,)
    """
    for outcome in outcomes:
        if outcome.values is None:
            return outcome
    return Outcome(
        _means([outcome.values or () for outcome in outcomes]),
        outcomes[0].status,
        _means([outcome.violations for outcome in outcomes]),
    )


def _means(rows: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
    return tuple(sum(column) / len(rows) for column in zip(*rows, strict=True))
