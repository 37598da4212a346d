"""How a run that is asked to stop comes to its end: what is in memory alone is saved first."""

from __future__ import annotations

import threading
from collections.abc import Callable

from cerebro.errors import RunInterrupted
from cerebro.run.dispatch import Dispatcher
from cerebro.run.ledger import Ledger
from cerebro.run.recovery import OpenRun
from cerebro.run.roster import Roster
from cerebro.run.signals import GraceOver, LingerOver, interrupted
from cerebro.run.states import States
from cerebro.run.unit import LiveUnit

#: How long visits in flight may go on, and states be saved, after a first Ctrl-C.
GRACE_S = 30.0
#: How long a state is not saved because a visit in flight may replace it.
LINGER_S = 2.0


class Stopping:
    """From the first signal to the last state that is saved.

    Args:
        post: Sends a payload to the driver's loop.
    """

    def __init__(
        self,
        run: OpenRun,
        roster: Roster,
        ledger: Ledger,
        states: States,
        dispatcher: Dispatcher,
        post: Callable[[object], None],
    ) -> None:
        self._run = run
        self._roster = roster
        self._ledger = ledger
        self._states = states
        self._dispatcher = dispatcher
        self._post = post
        self._timers: list[threading.Timer] = []
        #: The signal that asks for it.
        self.number: int | None = None
        #: Visits in flight are not waited for any more, and nothing more is saved.
        self.is_abandoned = False
        #: States that visits in flight began with are saved, too.
        self.is_hurried = False

    @property
    def is_asked(self) -> bool:
        return self.number is not None

    @property
    def is_through(self) -> bool:
        """Whether there is nothing to wait for but commits that are on their way."""
        return self.is_abandoned or not self._dispatcher

    def begin(self, number: int) -> None:
        """The run is asked to stop."""
        self.number = number
        self._roster.is_closing = True
        self.after(LINGER_S, LingerOver())
        self.after(GRACE_S, GraceOver())

    def after(self, seconds: float, payload: object) -> None:
        """Post something to the loop later on."""
        timer = threading.Timer(seconds, lambda: self._post(payload))
        timer.daemon = True
        timer.start()
        self._timers.append(timer)

    def close(self) -> None:
        for timer in self._timers:
            timer.cancel()

    def save_next(self) -> None:
        """Save a state whose visits wait for the end of their epoch, if the last one is saved.

        One at a time, so that each counts at once and little is under way when time is over; those
        first that no visit in flight is about to replace.
        """
        if not self.is_asked or self.is_abandoned or self._ledger.pending:
            return
        for live in sorted(self._waiting(), key=self._order):
            state = self._states.unsaved(live.id)
            if state is not None and (self.is_hurried or not self._dispatcher.is_busy(live.id)):
                self._ledger.put_at_stop(live, state)
                return

    def _order(self, live: LiveUnit) -> tuple[bool, float]:
        return self._dispatcher.is_busy(live.id), live.ended_s

    def _waiting(self) -> list[LiveUnit]:
        return [live for live in self._roster if live.num_waiting and not live.is_abandoned]

    def error(self) -> RunInterrupted:
        """What became of it; once everything has ended."""
        trials = self._run.history.trials.values()
        saved = sum(trial.visits - trial.parent_visits for trial in trials)
        lost = sum(live.num_waiting * len(live.alive) for live in self._waiting())
        lost += sum(live.forgotten * len(live.alive) for live in self._roster if live.lost)
        if lost:
            told = (
                f"{saved} visits are saved, {lost} more could not be in time and are trained "
                "again; the same command resumes it."
            )
        elif saved:
            # A run without checkpoints has its journal alone.
            count = f" ({saved} visits)" if any(map(self._run.history.kept, trials)) else ""
            told = f"what was trained is saved{count}, the same command resumes it."
        else:
            told = "nothing is saved yet, the same command begins anew."
        return interrupted(self.number or 0, f"stopped; {told}")
