"""Stoppers: how long each trial is trained, and which ones make way for others."""

from __future__ import annotations

from typing import Protocol

from cerebro.search.decision import Decision, Report
from cerebro.types import Json, Params, TrialStatus


class Stopper(Protocol):
    """Decides by what it was told alone, in the order in which it was told.

    It is told once of each thing, and only of what is durable; a run that was killed tells its
    stopper everything again, from the journal. So it keeps no clock and draws from seeded streams.
    Decisions about a trial that has ended meanwhile are without effect.
    """

    #: Whether it weighs trials against each other; such a one cannot tell repeats of a trial apart.
    is_comparing: bool

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        """A trial exists, with so many epochs behind it (those of another that it is a copy of).

        How many must be behind it when it waits for a promotion; None: it never does.
        """
        ...

    def visited(self, report: Report) -> list[Decision]:
        """A training visit is over."""
        ...

    def evaluated(self, report: Report) -> list[Decision]:
        """An epoch is over."""
        ...

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        """A trial reached a final status, by a decision or otherwise."""
        ...

    def exhausted(self) -> list[Decision]:
        """All that is left waits, and no more trials are planned: who goes on all the same?

        Asked whenever it has come to that, perhaps again after those have ended; trials that wait
        and are not promoted by the answer are stopped.
        """
        ...

    def describe(self) -> dict[str, Json]:
        """Its name and all its arguments; `make_stopper` gives it back."""
        ...


class Endless:
    """Every trial is trained to its end.

    >>> Endless().added(0, {}, 0)
    """

    is_comparing = False

    def added(self, trial: int, params: Params, epochs: int) -> int | None:
        return None

    def visited(self, report: Report) -> list[Decision]:
        return []

    def evaluated(self, report: Report) -> list[Decision]:
        return []

    def ended(self, trial: int, status: TrialStatus) -> list[Decision]:
        return []

    def exhausted(self) -> list[Decision]:
        return []

    def describe(self) -> dict[str, Json]:
        return {"name": "endless"}
