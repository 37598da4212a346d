"""A bracket of synchronous halving: a rung is left once all of its trials have come or ended."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.search.decision import Decision, Promote, Stop


class Bracket:
    """So many trials, compared at so many epochs, of which so many go on.

    Args:
        places: Trials it is for.
        rungs: (epochs, trials that go on from there), first to last.
        epochs: Of the whole run, where the last ones go.

    >>> bracket = Bracket(2, [(1, 1)], epochs=3)
    >>> bracket.enter(0)
    >>> bracket.enter(1)
    >>> bracket.report(0, 1, 0.5)
    []
    >>> bracket.report(1, 1, 0.9)
    [Promote(trial=1, epochs=3), Stop(trial=0, reason='not among the best 1 of 2 after epoch 1')]
    """

    def __init__(self, places: int, rungs: Sequence[tuple[int, int]], epochs: int) -> None:
        self._places = places
        self._rungs = tuple(rungs)
        self._targets = (*(level for level, _ in rungs), epochs)
        #: The rung that is waited for; those before it have been left.
        self._current = 0
        #: Live trials: the rung each comes to next. Results there.
        self._next: dict[int, int] = {}
        self._results: dict[int, float] = {}
        #: The worst result that went on, by rung: what latecomers must beat.
        self._cutoffs: list[float] = []

    @property
    def first(self) -> int | None:
        """Epochs at the first rung; None where there is none."""
        return self._rungs[0][0] if self._rungs else None

    @property
    def has_places(self) -> bool:
        return self._places > 0

    def enter(self, trial: int) -> None:
        """A trial takes a place."""
        self._places -= 1
        if self._rungs:
            self._next[trial] = 0

    def report(self, trial: int, epochs: int, score: float) -> list[Decision]:
        """A trial's score after some epoch."""
        rung = self._next.get(trial)
        if rung is None or epochs < self._rungs[rung][0]:
            return []
        if epochs > self._rungs[rung][0]:
            # A person let it go on: it takes part no more.
            return self.drop(trial)
        if rung < self._current:
            return self._judge_late(trial, rung, score)
        self._results[trial] = score
        return self._leave_rung()

    def drop(self, trial: int) -> list[Decision]:
        """A trial ended: nobody waits for it."""
        self._results.pop(trial, None)
        if self._next.pop(trial, None) is None:
            return []
        return self._leave_rung()

    def close(self) -> list[Decision]:
        """Nobody else comes: those who are there are compared."""
        self._places = 0
        return self._leave_rung(is_forced=True)

    def _leave_rung(self, *, is_forced: bool = False) -> list[Decision]:
        if self._current == len(self._rungs) or not self._results:
            return []
        awaited = [t for t, rung in self._next.items() if rung == self._current]
        is_complete = not self._places and len(awaited) == len(self._results)
        if not (is_complete or is_forced):
            return []
        level, quota = self._rungs[self._current]
        ranked = sorted(self._results, key=lambda trial: (-self._results[trial], trial))
        self._cutoffs.append(self._results[ranked[:quota][-1]])
        decisions: list[Decision] = [self._go_on(trial) for trial in ranked[:quota]]
        reason = f"not among the best {quota} of {len(ranked)} after epoch {level}"
        for trial in ranked[quota:]:
            del self._next[trial]
            decisions.append(Stop(trial, reason))
        self._results = {}
        self._current += 1
        return decisions

    def _judge_late(self, trial: int, rung: int, score: float) -> list[Decision]:
        if score > self._cutoffs[rung]:
            return [self._go_on(trial)]
        del self._next[trial]
        level = self._rungs[rung][0]
        return [Stop(trial, f"no better than those that went on after epoch {level}")]

    def _go_on(self, trial: int) -> Promote:
        rung = self._next[trial] + 1
        if rung < len(self._rungs):
            self._next[trial] = rung
        else:
            del self._next[trial]
        return Promote(trial, self._targets[rung])
