"""Where a unit begins, or goes on after a resume: from the history to the planner."""

from __future__ import annotations

from typing import NamedTuple

from cerebro import mop
from cerebro.run.history import RunHistory, StackHistory, TrialHistory
from cerebro.run.spec import RunSpec
from cerebro.run.unit import LiveUnit
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import Sums


class Entry(NamedTuple):
    """A unit that enters the plan."""

    live: LiveUnit
    added: mop.UnitAdded
    #: The state it starts from; None for a new one.
    checkpoint: CheckpointRef | None

    @property
    def is_finished(self) -> bool:
        """All its visits are done, though its trials have not ended."""
        return self.added.epoch == self.added.unit.epochs


def entries(history: RunHistory, spec: RunSpec) -> list[Entry]:
    """All units with something left to do, in the order of their first trials."""
    found: list[Entry] = []
    for trial in history.trials.values():
        if trial.stack is None:
            if not trial.status.is_final:
                found.append(trial_entry(trial, spec))
            continue
        stack = history.stacks[trial.stack]
        if stack.trials[0] == trial.number and not history.is_over(stack):
            found.append(stack_entry(history, stack, spec))
    return found


def trial_entry(trial: TrialHistory, spec: RunSpec) -> Entry:
    """A trial alone."""
    number = trial.number
    epoch, step = _position(trial.visits, len(trial.epochs), spec)
    live = LiveUnit(number, {number: trial.params}, alive={number: None})
    live.train = {visit: {number: sums} for visit, sums in trial.sums.items()}
    unit = mop.Unit(number, (number,), trial.start, spec.epochs)
    return Entry(live, mop.UnitAdded(unit, epoch, step), trial.last_checkpoint)


def stack_entry(history: RunHistory, stack: StackHistory, spec: RunSpec) -> Entry:
    """A stack; those that have left it are in its state until the next epoch begins."""
    trials = [history.trials[number] for number in stack.trials]
    alive = [trial for trial in trials if not trial.status.is_final]
    staying = tuple(trial.number for trial in alive)
    # Records of an epoch come for one trial after another: a kill may have cut them off.
    epoch, step = _position(stack.visits, min(len(trial.epochs) for trial in alive), spec)
    members = stack.members_at(stack.visits) if step else staying
    live = LiveUnit(
        stack.unit,
        {number: history.trials[number].params for number in members},
        stack.stacking,
        alive=dict.fromkeys(staying),
    )
    live.recorded = frozenset(trial.number for trial in alive if len(trial.epochs) > epoch)
    live.train = _transposed(alive)
    unit = mop.Unit(stack.unit, members, stack.start, spec.epochs, weight=float(len(members)))
    last = stack.checkpoints[-1] if stack.checkpoints else None
    return Entry(live, mop.UnitAdded(unit, epoch, step, staying), last)


def _position(visits: int, evaluated: int, spec: RunSpec) -> tuple[int, int]:
    """The epoch under way and the training visits done in it."""
    epoch, step = divmod(visits, spec.train_shards)
    if epoch > spec.epochs:
        # Forced to fewer epochs than it has done.
        return spec.epochs, 0
    if step == 0 and epoch > evaluated:
        # The epoch's training is durable, its evaluation is not.
        return epoch - 1, spec.train_shards
    return epoch, step


def _transposed(trials: list[TrialHistory]) -> dict[int, dict[int, Sums]]:
    found: dict[int, dict[int, Sums]] = {}
    for trial in trials:
        for visit, sums in trial.sums.items():
            found.setdefault(visit, {})[trial.number] = sums
    return found
