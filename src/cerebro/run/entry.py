"""Where a unit begins, or goes on after a resume: from the history to the planner."""

from __future__ import annotations

from typing import NamedTuple

from cerebro import mop
from cerebro.run.history import RunHistory, StackHistory, TrialHistory
from cerebro.run.spec import RunSpec
from cerebro.run.unit import LiveUnit
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import Sums
from cerebro.types import TrialStatus


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
    """All units with something left to do, those last that were last worked on.

    So a plan that prefers the latest goes on with what it had when it was cut off.
    """
    found: dict[int, Entry] = {}
    for trial in sorted(history.trials.values(), key=lambda trial: trial.touched):
        unit = trial.number if trial.stack is None else trial.stack
        if is_under_way(trial) and unit not in found:
            found[unit] = entry(trial, history, spec)
    return list(found.values())


def is_under_way(trial: TrialHistory) -> bool:
    """Whether there is something to do for it, as things stand."""
    return trial.status in (TrialStatus.PENDING, TrialStatus.RUNNING)


def entry(trial: TrialHistory, history: RunHistory, spec: RunSpec) -> Entry:
    """The unit that a trial is in."""
    if trial.stack is None:
        return trial_entry(trial, spec)
    return stack_entry(history, history.stacks[trial.stack], spec)


def trial_entry(trial: TrialHistory, spec: RunSpec) -> Entry:
    """A trial alone."""
    number, epochs = trial.number, trial.target or spec.epochs
    epoch, step = _position(trial.visits, len(trial.epochs), epochs, spec.train_shards)
    live = LiveUnit(number, {number: trial.params}, alive={number: None})
    live.train = {visit: {number: sums} for visit, sums in trial.sums.items()}
    live.train_batches = dict(trial.batches)
    live.micro_batch = trial.micro_batch
    live.fold = trial.repeat if spec.folds else None
    if trial.parent_params is not None:
        live.origin = trial.parent_params, trial.parent_visits
    unit = mop.Unit(number, (number,), trial.start, epochs)
    return Entry(live, mop.UnitAdded(unit, epoch, step), trial.last_checkpoint)


def stack_entry(history: RunHistory, stack: StackHistory, spec: RunSpec) -> Entry:
    """A stack; those that have left it are in its state until the next epoch begins."""
    trials = [history.trials[number] for number in stack.trials]
    alive = [trial for trial in trials if trial.stack == stack.unit and is_under_way(trial)]
    staying = tuple(trial.number for trial in alive)
    epochs = min(trial.target or spec.epochs for trial in alive)
    # In old journals records of an epoch come for one trial after another: some may be cut off.
    evaluated = min(len(trial.epochs) for trial in alive)
    epoch, step = _position(stack.visits, evaluated, epochs, spec.train_shards)
    members = stack.members_at(stack.visits) if step else staying
    live = LiveUnit(
        stack.unit,
        {number: history.trials[number].params for number in members},
        stack.stacking,
        alive=dict.fromkeys(staying),
    )
    live.recorded = frozenset(trial.number for trial in alive if len(trial.epochs) > epoch)
    live.train = _transposed(alive)
    # As when it began: what is planned next must not depend on when it entered.
    weight = float(len(stack.trials))
    unit = mop.Unit(stack.unit, members, stack.start, epochs, weight=weight)
    last = stack.checkpoints[-1] if stack.checkpoints else None
    return Entry(live, mop.UnitAdded(unit, epoch, step, staying), last)


def _position(visits: int, evaluated: int, epochs: int, shards: int) -> tuple[int, int]:
    """The epoch under way and the training visits done in it."""
    epoch, step = divmod(visits, shards)
    if epoch > epochs or (epoch == epochs and step):
        # It was to do more before.
        return epochs, 0
    if step == 0 and epoch > evaluated:
        # The epoch's training is durable, its evaluation is not.
        return epoch - 1, shards
    return epoch, step


def _transposed(trials: list[TrialHistory]) -> dict[int, dict[int, Sums]]:
    found: dict[int, dict[int, Sums]] = {}
    for trial in trials:
        for visit, sums in trial.sums.items():
            found.setdefault(visit, {})[trial.number] = sums
    return found
