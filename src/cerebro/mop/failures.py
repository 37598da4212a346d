"""What to do when a visit fails: decisions are values, budgets are data."""

from __future__ import annotations

import enum
from typing import NamedTuple


class Cause(enum.StrEnum):
    """Why a visit ended without an answer worth keeping."""

    ERROR = "error"  #: the task raised
    DIVERGED = "diverged"  #: the loss or a weight is not finite: trying again would repeat it
    LOST = "lost"  #: the worker died under it
    MEMORY = "memory"  #: there was not enough memory: it may do with all there is
    AGAIN = "again"  #: it is tried in another way now, so this attempt does not count


class Decision(enum.StrEnum):
    """What becomes of the unit."""

    RETRY = "retry"
    FAIL = "fail"
    DIVERGED = "diverged"
    QUARANTINE = "quarantine"  #: it keeps killing workers
    TOO_LARGE = "too large"  #: it needs more memory than there is


class Budget(NamedTuple):
    """How often one visit may fail; deaths of workers are counted apart from errors."""

    errors: int = 3
    same_error: int = 2  #: the same signature this often is no accident
    deaths: int = 3
    memory: int = 2  #: the first time others may have had it

    @property
    def attempts(self) -> int:
        """The most attempts a visit can get, less those that do not count."""
        return self.errors + self.deaths + self.memory - 2


class History(NamedTuple):
    """The failures of one visit so far.

    >>> History().after(Cause.ERROR, "ValueError: x").after(Cause.LOST).attempts
    2
    """

    signatures: tuple[str, ...] = ()  #: one per error, in order
    deaths: int = 0
    memory: int = 0  #: how often there was not enough
    again: int = 0  #: attempts that do not count

    @property
    def attempts(self) -> int:
        return len(self.signatures) + self.deaths + self.memory + self.again

    def after(self, cause: Cause, signature: str = "") -> History:
        """This history with one more failure."""
        if cause is Cause.LOST:
            return self._replace(deaths=self.deaths + 1)
        if cause is Cause.MEMORY:
            return self._replace(memory=self.memory + 1)
        if cause is Cause.AGAIN:
            return self._replace(again=self.again + 1)
        return self._replace(signatures=(*self.signatures, signature))


def decide(history: History, cause: Cause, budget: Budget) -> Decision:
    """The decision after a failure; `history` includes it.

    >>> decide(History(("KeyError: 'x'",) * 2), Cause.ERROR, Budget())
    <Decision.FAIL: 'fail'>
    >>> decide(History(deaths=2), Cause.LOST, Budget())
    <Decision.RETRY: 'retry'>
    >>> decide(History(memory=2), Cause.MEMORY, Budget())
    <Decision.TOO_LARGE: 'too large'>
    """
    if cause is Cause.AGAIN:
        return Decision.RETRY
    if cause is Cause.MEMORY:
        return Decision.TOO_LARGE if history.memory >= budget.memory else Decision.RETRY
    if cause is Cause.DIVERGED:
        return Decision.DIVERGED
    if cause is Cause.LOST:
        return Decision.QUARANTINE if history.deaths >= budget.deaths else Decision.RETRY
    errors = history.signatures
    if len(errors) >= budget.errors or errors.count(errors[-1]) >= budget.same_error:
        return Decision.FAIL
    return Decision.RETRY


def explain(decision: Decision, history: History) -> str:
    """The reason given for a unit that is not tried again."""
    last = history.signatures[-1] if history.signatures else ""
    if decision is Decision.QUARANTINE:
        return f"quarantined: {history.deaths} workers died in this visit"
    if decision is Decision.TOO_LARGE:
        return f"out of memory {history.memory} times, the last time with nothing else running"
    if decision is Decision.DIVERGED:
        return f"diverged: {last}" if last else "diverged"
    return f"{len(history.signatures)} attempts failed; the last: {last}"
