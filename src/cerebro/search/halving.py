"""Synchronous successive halving, alone and in the brackets of Hyperband (Li et al., 2018)."""

from __future__ import annotations

from cerebro.errors import UsageError
from cerebro.search.asha import rung_levels
from cerebro.search.bracket import Bracket
from cerebro.search.checks import check_whole
from cerebro.search.decision import Decision, Report
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.types import Json, Mode, Params, TrialStatus


class _Bracketed(Endless):
    """Trials take places in brackets in the order in which they are added."""

    is_comparing = True

    def __init__(self, scale: Scale) -> None:
        self._scale = scale
        #: Brackets with places left, or trials; the bracket of each live trial.
        self._brackets: list[Bracket] = []
        self._bracket_of: dict[int, Bracket] = {}

    def _next_bracket(self) -> Bracket | None:
        """The bracket that the next trial enters; None: it trains to its end without one."""
        raise NotImplementedError

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        # A copy has a start that the others had not.
        bracket = self._next_bracket() if epochs == 0 else None
        if bracket is None:
            return None
        bracket.enter(trial)
        self._bracket_of[trial] = bracket
        return bracket.first

    def evaluated(self, report: Report) -> list[Decision]:
        bracket = self._bracket_of.get(report.trial)
        if bracket is None:
            return []
        return bracket.report(report.trial, report.epochs, self._scale.score(report.metrics))

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        bracket = self._bracket_of.pop(trial, None)
        return [] if bracket is None else bracket.drop(trial)

    def exhausted(self) -> list[Decision]:
        return [decision for bracket in self._brackets for decision in bracket.close()]


class Halving(_Bracketed):
    """The best 1/eta of all trials go on from each rung, once the last of them is there.

    Rungs are at grace, grace * eta, ... epochs. Trials beyond the planned number, and copies of
    others, are trained to their end without taking part. A trial that fails is not waited for.

    Args:
        num_trials: Trials that are planned.
        eta: One in so many goes on, at least one.
        grace: Epochs at the first rung.

    >>> halving = Halving(metric="loss", mode=Mode.MIN, epochs=3, num_trials=2, eta=2)
    >>> [halving.added(trial, {}, 0) for trial in range(3)]
    [1, 1, None]
    >>> halving.evaluated(Report(0, 1, 4, {"loss": 0.5}))
    []
    >>> halving.ended(1, TrialStatus.DIVERGED)
    [Promote(trial=0, epochs=2)]
    """

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode,
        epochs: int,
        num_trials: int | None,
        eta: int = 3,
        grace: int = 1,
    ) -> None:
        super().__init__(Scale(metric, mode))
        levels = rung_levels(grace, eta, epochs)
        if num_trials is None:
            raise UsageError(
                "stopper 'halving' waits for all trials and needs num_trials. Give it, or use "
                "'asha', which waits for none."
            )
        self._eta = eta
        self._grace = grace
        rungs, count = [], check_whole("num_trials", num_trials, 1)
        for level in levels:
            count = max(count // eta, 1)
            rungs.append((level, count))
        self._brackets.append(Bracket(num_trials, rungs, epochs))

    def _next_bracket(self) -> Bracket | None:
        (bracket,) = self._brackets
        return bracket if bracket.has_places else None

    def describe(self) -> dict[str, Json]:
        scale = self._scale.describe()
        return {"name": "halving", **scale, "eta": self._eta, "grace": self._grace}


class Hyperband(_Bracketed):
    """Brackets of halving, from many trials that are judged early to few that are not at all.

    Trials fill the brackets in order, the largest first; more than `num_trials` of them begin the
    round anew.

    Args:
        eta: One in so many goes on.

    >>> Hyperband(metric="loss", mode=Mode.MIN, epochs=81).sizes()
    [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)]
    """

    def __init__(self, *, metric: str, mode: Mode, epochs: int, eta: int = 3) -> None:
        super().__init__(Scale(metric, mode))
        self._eta = check_whole("eta", eta, 2)
        self._epochs = check_whole("epochs", epochs, 1)
        self._num_made = 0
        #: Trials in one round.
        self.num_trials: int | None = sum(places for places, _ in self.sizes())

    def sizes(self) -> list[tuple[int, int]]:
        """(trials, epochs at their first rung) of each bracket; the last has no rung."""
        last = self._last()
        # ceil of (last + 1) / (s + 1) * eta ** s
        return [
            (-(-(last + 1) * self._eta**s // (s + 1)), self._epochs // self._eta**s)
            for s in range(last, -1, -1)
        ]

    def _last(self) -> int:
        """The largest s for which eta ** s is not above the epochs."""
        s = 0
        while self._eta ** (s + 1) <= self._epochs:
            s += 1
        return s

    def _next_bracket(self) -> Bracket:
        if not self._brackets or not self._brackets[-1].has_places:
            sizes = self.sizes()
            index = self._num_made % len(sizes)
            self._num_made += 1
            places, halvings = sizes[index][0], len(sizes) - 1 - index
            rungs = [
                (self._epochs // self._eta ** (halvings - i), places // self._eta ** (i + 1))
                for i in range(halvings)
            ]
            self._brackets.append(Bracket(places, rungs, self._epochs))
        return self._brackets[-1]

    def describe(self) -> dict[str, Json]:
        return {"name": "hyperband", **self._scale.describe(), "eta": self._eta}
