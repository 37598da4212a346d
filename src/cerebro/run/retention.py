"""Which checkpoints are kept: a pure function of what is durable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from cerebro.run.past import StackHistory, TrialHistory
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.types import Mode

#: Checkpoints of a stack beyond which those of its members that still count are taken out.
KEPT = 6


class Extract(NamedTuple):
    """A stack's checkpoint, and the trials whose states in it are wanted."""

    ref: CheckpointRef
    trials: tuple[int, ...]


@dataclass(slots=True)
class Trials:
    """All trials of a run and what they want to be kept."""

    #: Training visits in an epoch.
    steps: int
    #: Those of a trial that is trained to the end.
    epochs: int
    metric: str
    mode: Mode
    trials: dict[int, TrialHistory] = field(default_factory=dict)
    #: By unit.
    stacks: dict[int, StackHistory] = field(default_factory=dict)
    #: Units of which some checkpoints may have become superfluous, and those that have.
    _touched: dict[int, None] = field(default_factory=dict, compare=False, repr=False)
    _superfluous: list[CheckpointRef] = field(default_factory=list, compare=False, repr=False)

    def is_over(self, stack: StackHistory) -> bool:
        """Whether nothing of a stack is left to train."""
        return stack.is_dissolved or all(
            trial.status.is_final or trial.stack != stack.unit
            for trial in (self.trials[number] for number in stack.trials)
        )

    def kept(self, trial: TrialHistory) -> list[CheckpointRef]:
        """Checkpoints with the trial's last state and that of its best epoch, oldest first.

        Those of its stack are among them.
        """
        stack = None if trial.stack is None else self.stacks[trial.stack]
        if stack is None:
            return trial.checkpoints
        if trial.is_dropped:
            return []
        refs = [ref for ref in stack.checkpoints if ref.visits <= trial.visits]
        if trial.checkpoints:
            own = {ref.visits: ref for ref in trial.checkpoints}
            refs = sorted({**{ref.visits: ref for ref in refs}, **own}.values(), key=by_visits)
        best = trial.best_epoch(self.metric, self.mode)
        wanted = {-1 if best is None else trial.epochs[best].visits, trial.before_stop}
        return [ref for ref in refs if ref is refs[-1] or ref.visits in wanted]

    def extracts(self, stack: StackHistory, limit: int = KEPT) -> list[Extract]:
        """What to take out of a stack's checkpoints so that at most `limit` are kept."""
        surplus = stack.checkpoints[: max(0, len(stack.checkpoints) - limit)]
        if not surplus:
            return []
        wanted: dict[str, list[int]] = {ref.name: [] for ref in surplus}
        for number in stack.trials:
            for ref in self.kept(self.trials[number]):
                if ref.unit == stack.unit and ref.name in wanted:
                    wanted[ref.name].append(number)
        return [Extract(ref, tuple(wanted[ref.name])) for ref in surplus]

    def _settle(self) -> None:
        touched, self._touched = self._touched, {}
        for unit in touched:
            if unit < 0:
                self._retain_stack(self.stacks[unit])
            else:
                self._retain(self.trials[unit])

    def _retain(self, trial: TrialHistory) -> None:
        """Keep the last two checkpoints (the last one of a finished trial) and the best epoch's.

        And the one in due order before those of a stop: a trial that fails goes back to it.
        """
        found = [ref for ref in trial.checkpoints if ref.visits <= trial.visits]
        keep = {ref.name for ref in found[-1 if trial.status.is_final else -2 :]}
        keep |= {ref.name for ref in found if ref.visits == trial.before_stop}
        best = trial.best_epoch(self.metric, self.mode)
        if trial.is_dropped:
            keep = set()
        elif best is not None:
            visits = trial.epochs[best].visits
            keep |= {ref.name for ref in trial.checkpoints if ref.visits == visits}
        dropped = [ref for ref in trial.checkpoints if ref.name not in keep]
        if dropped:
            trial.checkpoints = [ref for ref in trial.checkpoints if ref.name in keep]
            self._superfluous += dropped

    def _retain_stack(self, stack: StackHistory) -> None:
        """Keep the last two (none of a stack that is over) and all that any member wants."""
        if stack.is_dissolved:
            return
        keep = set() if self.is_over(stack) else {ref.name for ref in stack.checkpoints[-2:]}
        for trial in (self.trials[number] for number in stack.trials):
            if trial.stack != stack.unit:
                continue
            kept = self.kept(trial)
            keep |= {ref.name for ref in kept if ref.is_stack}
            if trial.checkpoints:
                own = [ref for ref in trial.checkpoints if ref in kept]
                self._superfluous += [ref for ref in trial.checkpoints if ref not in own]
                trial.checkpoints = own
        self._superfluous += [ref for ref in stack.checkpoints if ref.name not in keep]
        stack.checkpoints = [ref for ref in stack.checkpoints if ref.name in keep]


def by_visits(ref: CheckpointRef) -> int:
    return ref.visits
