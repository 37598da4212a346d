"""ASHA: asynchronous successive halving (Li et al., 2020)."""

from __future__ import annotations

from bisect import bisect_left, insort

from cerebro.errors import UsageError
from cerebro.search.checks import check_whole
from cerebro.search.decision import Decision, Promote, Report, Stop
from cerebro.search.scale import Scale
from cerebro.search.stopper import Endless
from cerebro.search.wording import unknown
from cerebro.types import Json, Mode, Params, TrialStatus

_KINDS = ("promote", "stop")


def rung_levels(grace: int, eta: int, epochs: int) -> tuple[int, ...]:
    """Epochs at which trials are compared: grace, grace * eta, ... below the last.

    >>> rung_levels(1, 3, 27)
    (1, 3, 9)
    """
    check_whole("eta", eta, 2)
    check_whole("grace", grace, 1)
    if grace >= epochs:
        raise UsageError(
            f"`grace < epochs` must hold, or no trial is ever compared, but got grace={grace}, "
            f"epochs={epochs}. Train more epochs or remove the stopper."
        )
    levels = [grace]
    while levels[-1] * eta < epochs:
        levels.append(levels[-1] * eta)
    return tuple(levels)


class Rung:
    """The results at one number of epochs, best first; of equal ones the earlier trial.

    >>> rung = Rung()
    >>> rung.enter(0, 0.5), rung.enter(1, 0.9), rung.best(1)
    (0, 0, [1])
    """

    def __init__(self) -> None:
        self._ranked: list[tuple[float, int]] = []
        #: Trials that went on from here.
        self.promoted: set[int] = set()

    def __len__(self) -> int:
        return len(self._ranked)

    def enter(self, trial: int, score: float) -> int:
        """Add a result; its place, 0 for the best."""
        entry = (-score, trial)
        insort(self._ranked, entry)
        return bisect_left(self._ranked, entry)

    def at(self, place: int) -> int:
        """The trial on a place."""
        return self._ranked[place][1]

    def best(self, count: int) -> list[int]:
        """The first so many trials."""
        return [trial for _, trial in self._ranked[:count]]


class Asha(Endless):
    """Compares trials at rungs, without ever waiting for one: at grace, grace * eta, ... epochs.

    As "promote" (of the paper) a trial waits at a rung while it is not among the best 1/eta of the
    results there; as "stop" it goes on if it is at that moment, the first one in any case, and else
    ends. Where all that is left waits and no more trials come, the best of a rung that nobody left
    goes on, so that some trial is trained to its end. A trial that fails or diverges before a rung
    has no result there and is not counted.

    Args:
        eta: One in so many goes on.
        grace: Epochs at the first rung.
        brackets: With 2 or more, trials start in turn at the first, second, ... rung, so that some
            are not judged early; each bracket compares its own trials.
        kind: "promote" or "stop".

    >>> asha = Asha(metric="val_accuracy", mode=Mode.MAX, epochs=9)
    >>> [asha.added(trial, {}, 0) for trial in range(3)]
    [1, 1, 1]
    >>> [asha.evaluated(Report(n, 1, 4, {"val_accuracy": n / 10})) for n in range(3)]
    [[], [], [Promote(trial=2, epochs=3)]]
    """

    is_comparing = True

    def __init__(
        self,
        *,
        metric: str,
        mode: Mode,
        epochs: int,
        eta: int = 3,
        grace: int = 1,
        brackets: int = 1,
        kind: str = "promote",
    ) -> None:
        self._scale = Scale(metric, mode)
        self._epochs = epochs
        self._eta = eta
        self._grace = grace
        self._levels = rung_levels(grace, eta, epochs)
        if kind not in _KINDS:
            raise UsageError(unknown("kind of asha", str(kind), _KINDS))
        self._kind = kind
        if check_whole("brackets", brackets, 1) > len(self._levels):
            raise UsageError(
                f"`brackets <= {len(self._levels)}` must hold, the rungs at "
                f"{', '.join(map(str, self._levels))} epochs, but got brackets={brackets}."
            )
        self._rungs = [
            {level: Rung() for level in self._levels[first:]} for first in range(brackets)
        ]
        #: Of trials that have not ended: their rungs, and the epochs behind them.
        self._live: dict[int, dict[int, Rung]] = {}
        self._behind: dict[int, int] = {}
        self._num_added = 0

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        rungs = self._rungs[self._num_added % len(self._rungs)]
        self._num_added += 1
        self._live[trial] = rungs
        self._behind[trial] = epochs
        if self._kind == "stop":
            return None
        return next((level for level in rungs if level > epochs), None)

    def evaluated(self, report: Report) -> list[Decision]:
        trial, epochs = report.trial, report.epochs
        rungs = self._live.get(trial)
        if rungs is None or epochs <= self._behind[trial]:
            return []
        self._behind[trial] = epochs
        rung = rungs.get(epochs)
        if rung is None:
            return []
        place = rung.enter(trial, self._scale.score(report.metrics))
        quota = len(rung) // self._eta
        if self._kind == "stop":
            return self._judge(report, rung, place, max(quota, 1))
        # All within the quota were promoted before: only these two can be new there.
        places = {min(place, quota - 1), quota - 1} if quota else set()
        return self._promote(epochs, rung, [rung.at(each) for each in sorted(places)])

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        rungs = self._live.pop(trial, {})
        self._behind.pop(trial, None)
        if status.is_failure:
            for rung in rungs.values():
                rung.promoted.discard(trial)
        return []

    def exhausted(self) -> list[Decision]:
        decisions: list[Decision] = []
        for rungs in self._rungs:
            for level in sorted(rungs, reverse=True):
                rung = rungs[level]
                if not rung.promoted:
                    waiting = [t for t in rung.best(len(rung)) if self._behind.get(t) == level]
                    decisions += self._promote(level, rung, waiting[:1])
        return decisions

    def describe(self) -> dict[str, Json]:
        return {
            **{"name": "asha", **self._scale.describe(), "eta": self._eta, "grace": self._grace},
            **{"brackets": len(self._rungs), "kind": self._kind},
        }

    def _judge(self, report: Report, rung: Rung, place: int, quota: int) -> list[Decision]:
        if place < quota:
            rung.promoted.add(report.trial)
            return []
        among = f"{place + 1} of {len(rung)} results after epoch {report.epochs}"
        return [Stop(report.trial, f"not among the best {quota}: {among}")]

    def _promote(self, level: int, rung: Rung, trials: list[int]) -> list[Decision]:
        target = min(level * self._eta, self._epochs)
        decisions: list[Decision] = []
        for trial in trials:
            if trial in self._live and trial not in rung.promoted:
                rung.promoted.add(trial)
                # A person may have let it go on before.
                if self._behind[trial] == level:
                    decisions.append(Promote(trial, target))
        return decisions
