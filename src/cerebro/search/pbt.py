"""Population-based training (Jaderberg et al., 2017): bad trials become changed copies of good."""

from __future__ import annotations

import math
from collections.abc import Sequence

from cerebro.errors import UsageError
from cerebro.search.checks import check_real, check_whole
from cerebro.search.decision import Clone, Decision, Promote, Report
from cerebro.search.mutation import Mutation
from cerebro.search.scale import Scale
from cerebro.search.seeding import stream
from cerebro.search.space import Space
from cerebro.search.stopper import Endless
from cerebro.search.wording import show
from cerebro.types import Json, Mode, Params, TrialStatus, trial_id


class Pbt(Endless):
    """At every `interval` epochs a trial among the worst makes way for a copy of one of the best.

    The copy goes on with its source's state and with changed params. Members wait at a boundary for
    those behind them and are compared when all are there, so that it does not matter who is first.
    Params that shape the model must not change: name those that may in `mutate` where a range of
    numbers does.

    Args:
        space: Where the params come from.
        seed: With the trial and its epochs, says what is drawn.
        interval: Epochs between two boundaries.
        quantile: The share that counts as the worst, and as the best.
        factors: What numbers are multiplied by.
        resample: How likely a param is drawn anew instead.
        mutate: Params to change; None: all whose domain is a range of numbers.

    >>> from cerebro.search.space import parse_space
    >>> space = parse_space({"lr": {"uniform": [0, 1]}})
    >>> pbt = Pbt(metric="loss", mode=Mode.MIN, epochs=9, space=space, seed=0)
    >>> [pbt.added(trial, {"lr": 0.5}, 0) for trial in range(2)]
    [1, 1]
    >>> pbt.evaluated(Report(0, 1, 4, {"loss": 0.5}))
    []
    >>> good, bad = pbt.evaluated(Report(1, 1, 4, {"loss": 0.7}))
    >>> good, bad.trial, bad.source
    (Promote(trial=0, epochs=2), 1, 0)
    """

    is_comparing = True

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode,
        epochs: int,
        space: Space | None,
        seed: int,
        num_trials: int | None = None,
        interval: int = 1,
        quantile: float = 0.25,
        factors: Sequence[float] = (0.8, 1.2),
        resample: float = 0.25,
        mutate: Sequence[str] | None = None,
    ) -> None:
        self._scale = Scale(metric, mode)
        self._epochs = epochs
        self._seed = seed
        #: Members that are still to come.
        self._missing = num_trials or 0
        self._interval = check_whole("interval", interval, 1)
        if interval >= epochs:
            raise UsageError(
                f"`interval < epochs` must hold, or no trial is ever compared, but got "
                f"interval={interval}, epochs={epochs}."
            )
        self._quantile = check_real("quantile", quantile, 0, 0.5)
        self._resample = check_real("resample", resample, 0, 1)
        self._factors = _check_factors(factors)
        if mutate is not None and not isinstance(mutate, list | tuple):
            raise UsageError(f"`mutate` must be a list of names, but got mutate={show(mutate)}.")
        self._mutate = mutate
        if space is None:
            raise UsageError("stopper 'pbt' needs the search space, but got none.")
        self._mutation = Mutation(space, mutate, self._factors, self._resample)
        #: Of live trials: their params, epochs, and score at the boundary that they wait at.
        self._params: dict[int, Params] = {}
        self._behind: dict[int, int] = {}
        self._scores: dict[int, float] = {}

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        if trial not in self._params and not epochs:
            self._missing = max(self._missing - 1, 0)
        self._params[trial] = params
        self._behind[trial] = epochs
        return self._next_boundary(epochs)

    def evaluated(self, report: Report) -> list[Decision]:
        trial, epochs = report.trial, report.epochs
        if epochs <= self._behind.get(trial, epochs):
            return []
        self._behind[trial] = epochs
        if epochs >= self._epochs:
            # Nothing could go on from here.
            self._forget(trial)
            return self._compare()
        if epochs % self._interval:
            return []
        self._scores[trial] = self._scale.score(report.metrics)
        return self._compare()

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        self._forget(trial)
        return self._compare()

    def exhausted(self) -> list[Decision]:
        """Whoever is behind will not come, paused by people: the others go on without."""
        self._missing = 0
        return self._decide(min((self._behind[each] for each in self._scores), default=0))

    def describe(self) -> dict[str, Json]:
        return {
            **{"name": "pbt", **self._scale.describe(), "interval": self._interval},
            **{"quantile": self._quantile, "factors": list(self._factors)},
            "resample": self._resample,
            "mutate": None if self._mutate is None else list(self._mutate),
        }

    def _next_boundary(self, epochs: int) -> int:
        return min((epochs // self._interval + 1) * self._interval, self._epochs)

    def _compare(self) -> list[Decision]:
        """Once nobody is behind those at the lowest boundary that anybody waits at."""
        boundary = min((self._behind[each] for each in self._scores), default=0)
        behind = [each for each, epochs in self._behind.items() if epochs < boundary]
        moving = [
            each
            for each, epochs in self._behind.items()
            if epochs == boundary and each not in self._scores
        ]
        return [] if behind or moving or self._missing else self._decide(boundary)

    def _decide(self, boundary: int) -> list[Decision]:
        members = [each for each in self._scores if self._behind[each] == boundary]
        ranked = sorted(members, key=lambda each: (-self._scores[each], each))
        count = min(math.ceil(len(ranked) * self._quantile), len(ranked) // 2)
        scores = {each: self._scores.pop(each) for each in ranked}
        worst = set(ranked[len(ranked) - count :])
        decisions: list[Decision] = []
        for trial in sorted(ranked):
            # A copy of an equal, or of one that has diverged unnoticed, is no gain.
            best = [each for each in ranked[:count] if scores[each] > scores[trial]]
            if trial not in worst or not best:
                decisions.append(Promote(trial, self._next_boundary(boundary)))
                continue
            source = stream(self._seed, trial, f"{boundary}").choice(best)
            decisions.append(self._clone(trial, source, boundary, scores[trial], len(ranked)))
        return decisions

    def _clone(self, trial: int, source: int, epochs: int, score: float, members: int) -> Clone:
        params = self._mutation.apply(
            self._params[source], seed=self._seed, trial=trial, epochs=epochs
        )
        reason = (
            f"{self._scale.show(score)} after epoch {epochs} is among the worst of {members}: "
            f"a copy of {trial_id(source)} takes its place"
        )
        return Clone(trial, source, params, reason)

    def _forget(self, trial: int) -> None:
        for known in (self._params, self._behind, self._scores):
            known.pop(trial, None)


def _check_factors(factors: object) -> tuple[float, ...]:
    if not isinstance(factors, list | tuple) or not factors:
        raise UsageError(
            f"`factors` must be a list of numbers, as in [0.8, 1.2], but got "
            f"factors={show(factors)}."
        )
    return tuple(check_real("factors", factor, 1e-6, 1e6) for factor in factors)
