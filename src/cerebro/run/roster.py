"""The units that are worked on: who enters the plan, who leaves it, and when."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping

from cerebro import mop
from cerebro.run.aggregation import AggregationFailed, Aggregator
from cerebro.run.committer import Commit
from cerebro.run.dispatch import Dispatcher
from cerebro.run.entry import Entry, entry, is_under_way, trial_entry
from cerebro.run.history import TrialHistory
from cerebro.run.ledger import Ledger
from cerebro.run.recovery import OpenRun
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.states import States
from cerebro.run.unit import LOSSES, LiveUnit, Record
from cerebro.train.visit import VisitCall
from cerebro.types import TrialStatus, unit_id

logger = logging.getLogger("cerebro.run")


class Roster:
    """Every unit there was, by number; those that are through have no trial alive.

    Args:
        act: Carries out what the plan says.
    """

    def __init__(
        self,
        spec: RunSpec,
        run: OpenRun,
        planner: mop.Planner,
        states: States,
        ledger: Ledger,
        dispatcher: Dispatcher,
        act: Callable[[list[mop.Instruction]], None],
    ) -> None:
        self._spec = spec
        self._run = run
        self._planner = planner
        self._states = states
        self._ledger = ledger
        self._dispatcher = dispatcher
        self._act = act
        self._units: dict[int, LiveUnit] = {}
        #: The run is being stopped: those that must go back are left to the next driver.
        self.is_closing = False
        #: Makes an epoch's metrics of those of its batches.
        self.aggregator = Aggregator(None)

    def __getitem__(self, unit: int) -> LiveUnit:
        return self._units[unit]

    def __iter__(self) -> Iterator[LiveUnit]:
        return iter(list(self._units.values()))

    @property
    def is_through(self) -> bool:
        """Whether nothing is left to do, not by the next driver either."""
        return self._planner.finished and not any(live.lost for live in self._units.values())

    def awaits(self, unit: int) -> bool:
        """Whether something may come of a unit's visits, if only that it goes on after them."""
        return any(not trial.status.is_final for trial in self._trials_of(self._units[unit]))

    def enter(self, entered: Entry) -> None:
        """A unit begins, or goes on."""
        live = entered.live
        if live.id in self._units:
            live.succeed(self._units[live.id])
        self._units[live.id] = live
        if entered.checkpoint is not None:
            self._states.restore(live.id, entered.checkpoint)
        self._ledger.enter(live)
        self._act(self._planner.handle(entered.added))
        if entered.is_finished:
            self.finish(live)

    def follow(self, number: int) -> None:
        """A trial may be trained, as the history says: it enters, now or once it has left."""
        trial = self._run.history.trials[number]
        live = self._units.get(number if trial.stack is None else trial.stack)
        if not is_under_way(trial):
            return
        if live is None:
            self.enter(entry(trial, self._run.history, self._spec))
        elif number not in live.alive:
            # What was under way of it before must be over first.
            live.is_leaving = True
            self.settle(live)
        else:
            epochs = entry(trial, self._run.history, self._spec).added.unit.epochs
            self._act(self._planner.handle(mop.UnitExtended(live.id, epochs)))

    def withdraw(self, number: int) -> None:
        """A trial has ended by a decision: what is under way of it is of no use."""
        live = self._find(number)
        if live is None:
            self._forget(number)
            return
        live.alive.pop(number)
        if live.alive:
            self._act(self._planner.handle(mop.UnitReduced(live.id, tuple(live.alive))))
            return
        self._act(self._planner.handle(mop.UnitStopped(live.id)))
        ended = live.drop_waiting()
        if ended:
            self._ledger.put(Commit(ended), live)
        self._states.forget(live.id)

    def hold(self, number: int) -> None:
        """A trial waits from its next visit on; in a stack, at once: the others go on."""
        live = self._find(number)
        if live is not None and live.is_stack:
            self.withdraw(number)
        elif live is not None:
            live.is_leaving = True
            self._act(self._planner.handle(mop.UnitPaused(live.id)))
            self.settle(live)

    def reduce(
        self, live: LiveUnit, status: TrialStatus, reasons: Mapping[int, str | None]
    ) -> list[Record]:
        """These trials leave, at once as far as results go; their journal records."""
        ended = live.leave(status, reasons)
        self._planner.handle(mop.UnitReduced(live.id, tuple(live.alive)))
        return ended

    def finish(self, live: LiveUnit) -> None:
        """All that was planned of a unit is done: trials that are through end, others wait."""
        history, epochs = self._run.history, self._spec.epochs
        done = self._planner.progress(live.id)[0]
        limits = {number: history.trials[number].target or epochs for number in live.alive}
        if all(limit <= done and limit >= epochs for limit in limits.values()):
            self.end(live, TrialStatus.FINISHED, None)
            return
        through = dict.fromkeys(n for n, limit in limits.items() if epochs <= limit <= done)
        if through:
            self._ledger.put(Commit(live.leave(TrialStatus.FINISHED, through)), live)
        live.is_leaving = True
        self.settle(live)

    def end_epoch(self, live: LiveUnit, epoch: int) -> None:
        """All visits of an epoch are done. If no metrics can be made of them, the trial fails."""
        shards = self._spec.train_shards, self._spec.val_shards
        try:
            records = live.epoch_records(epoch, *shards, self.aggregator)
        except AggregationFailed as error:
            live.failure = error.failure
            self._act(self._planner.handle(mop.UnitStopped(live.id)))
            self.end(live, TrialStatus.FAILED, None)
        else:
            self._ledger.put(Commit(records), live)

    def end(self, live: LiveUnit, status: TrialStatus, reason: str | None) -> None:
        """All that is left of a unit ends."""
        self._states.forget(live.id)
        self._ledger.put(Commit([*live.drop_waiting(), *live.end(status, reason)]), live)

    def give_up(self, live: LiveUnit, failed: mop.UnitFailed) -> None:
        """A visit of a unit cannot be done."""
        if failed.cause is mop.Cause.DIVERGED:
            self.end(live, TrialStatus.DIVERGED, failed.reason)
        elif live.is_stack:
            # One bad member must not take the others down.
            live.given_up = failed.reason
            self.settle(live)
        elif failed.cause is mop.Cause.MEMORY:
            self.end(live, TrialStatus.OUT_OF_MEMORY, failed.reason)
        else:
            self.end(live, TrialStatus.FAILED, failed.reason)

    def lose(self, live: LiveUnit, reason: str, call: VisitCall | None = None) -> None:
        """The state is gone that a visit should begin with, or that was to be saved.

        If it is durable, the next attempt begins with the checkpoint. Else the unit goes back to
        the one before, as a resume would; a state that is being saved may still become that.
        """
        is_settled = live.given_up is not None or live.lost is not None
        if is_settled or (call is not None and live.is_abandoned):
            return
        is_durable = call is not None and self._states.lose(live.id)
        if live.lose_state(call if is_durable else None):
            live.failure = None
            # Its end may have been on its way behind what is lost.
            live.alive = {t.number: None for t in self._trials_of(live) if is_under_way(t)}
            self._act(self._planner.handle(mop.UnitStopped(live.id)))
            often = f"its state was lost {LOSSES} times and nothing became durable in between"
            failed = mop.UnitFailed(live.id, f"{often}; the last time: {reason}", mop.Cause.LOST)
            self.give_up(live, failed)
        elif not is_durable:
            live.go_back(reason)
            self._act(self._planner.handle(mop.UnitStopped(live.id)))

    def split(self, live: LiveUnit, call: VisitCall) -> None:
        """From now on a trial's batches are trained in smaller parts, for the same steps."""
        before, rows = call.micro_batch or call.batch_size, call.smaller_micro_batch
        live.micro_batch = rows
        logger.warning(
            "%s: out of memory with %d rows at a time: goes on with %d (micro_batch)",
            *(unit_id(live.id), before, rows),
        )
        record: Record = {"type": "micro_batch", "trial": live.id, "rows": rows}
        self._ledger.put(Commit([record]), live)

    def settle(self, live: LiveUnit) -> None:
        """Once nothing of a unit is under way: it leaves, goes back or is dissolved."""
        if live.commits or live.held is not None or self._dispatcher.is_busy(live.id):
            return
        if live.given_up is not None:
            self._dissolve(live)
        elif live.lost is not None:
            self._go_back(live)
        elif live.is_leaving:
            self._act(self._planner.handle(mop.UnitStopped(live.id)))
            if self._spec.checkpoint is not Checkpointing.OFF:
                self._states.forget_unsaved(live.id)
            self._enter_again(live)

    def _go_back(self, live: LiveUnit) -> None:
        """Forget what is not durable, and enter again."""
        is_wanted = any(not trial.status.is_final for trial in self._trials_of(live))
        if is_wanted and (self.is_closing or self._ledger.roll_back(live)):
            return
        if is_wanted:
            what = "goes back to its last checkpoint, since its state is lost"
            logger.warning("%s %s: %s", unit_id(live.id), what, live.lost)
        self._states.forget(live.id)
        live.first_attempt = live.next_attempt
        self._enter_again(live)

    def _enter_again(self, live: LiveUnit) -> None:
        """A unit has left; it may have been decided that some of it, old members too, go on."""
        live.is_leaving, live.lost, live.alive = False, None, {}
        trial = next(filter(is_under_way, self._trials_of(live)), None)
        if trial is not None:
            self.enter(entry(trial, self._run.history, self._spec))

    def _trials_of(self, live: LiveUnit) -> list[TrialHistory]:
        """The trials that are in a unit, those too that are not worked on."""
        history = self._run.history
        numbers = history.stacks[live.id].trials if live.is_stack else live.params
        found = (history.trials[number] for number in numbers)
        return [t for t in found if live.id == (t.number if t.stack is None else t.stack)]

    def _find(self, number: int) -> LiveUnit | None:
        """The unit in which a trial is alive."""
        return next((live for live in self._units.values() if number in live.alive), None)

    def _forget(self, number: int) -> None:
        """A trial that waited has ended or left: its state is of no use in memory."""
        history = self._run.history
        self._states.forget(number)
        for unit, stack in history.stacks.items():
            if number in stack.trials and history.is_over(stack):
                self._states.forget(unit)

    def _dissolve(self, live: LiveUnit) -> None:
        """Let the trials of a stack that was given up go on alone."""
        stack = self._run.history.stacks[live.id]
        if not stack.is_dissolved:
            why = live.failure.message if live.failure else live.given_up
            alone = f"{len(live.alive)} trials go on alone"
            logger.warning("stack %s is dissolved, %s: %s", unit_id(live.id), alone, why)
            self._ledger.dissolve(live)
            return
        live.given_up, live.alive = None, {}
        self._states.forget(live.id)
        for trial in (self._run.history.trials[number] for number in stack.trials):
            if trial.stack is None and is_under_way(trial) and trial.number not in self._units:
                self.enter(trial_entry(trial, self._spec))
