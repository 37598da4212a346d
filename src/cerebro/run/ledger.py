"""Everything the driver makes durable, and what follows once it is."""

from __future__ import annotations

from typing import cast

from cerebro.backend.base import Backend, StateRef
from cerebro.errors import CerebroError
from cerebro.run.checks import check_space
from cerebro.run.committer import Commit, Committer
from cerebro.run.history import Extract
from cerebro.run.recovery import OpenRun
from cerebro.run.reporter import Reporter
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.run.states import States
from cerebro.run.unit import LiveUnit, Record
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.train.visit import VisitCall
from cerebro.types import stack_unit


class Ledger:
    """Puts commits in order and takes them into the history when they are durable."""

    def __init__(
        self, spec: RunSpec, run: OpenRun, backend: Backend, states: States, reporter: Reporter
    ) -> None:
        self._spec = spec
        self._run = run
        self._backend = backend
        self._states = states
        self._reporter = reporter
        self._committer: Committer | None = None
        #: Those that have entered.
        self._units: dict[int, LiveUnit] = {}
        #: Checkpoints of stacks out of which members are being taken.
        self._taking: set[tuple[int, str]] = set()
        self._has_checked_space = False
        #: Commits that are not durable yet.
        self.pending = 0

    @property
    def is_open(self) -> bool:
        return self._committer is not None

    def open(self, *, threaded: bool) -> None:
        """The run has begun."""
        history = self._run.history
        last = {trial.number: trial.last_checkpoint for trial in history.trials.values()}
        for stack in history.stacks.values():
            last[stack.unit] = stack.checkpoints[-1] if stack.checkpoints else None
        self._committer = Committer(
            self._run.store,
            self._run.opened,
            self._backend.save,
            self._backend.post,
            {unit: ref.sha256 for unit, ref in last.items() if ref is not None},
            threaded=threaded,
        )
        for unit, stack in history.stacks.items():
            if history.is_over(stack):
                self._thin_out(unit)

    def enter(self, live: LiveUnit) -> None:
        """A unit goes on; an earlier driver may have left something to do for it."""
        self._units[live.id] = live
        if live.is_stack:
            self._thin_out(live.id)

    def put(self, commit: Commit, live: LiveUnit | None = None) -> None:
        """Make it durable after all that was put before."""
        if self._committer is None:
            raise CerebroError("nothing can be committed before the run begins.")
        self.pending += 1
        if live is not None:
            commit.unit, commit.rewinds = live.id, live.rewinds
            live.commits += 1
        self._committer.put(commit)

    def put_visit(self, live: LiveUnit, call: VisitCall, state: StateRef) -> bool:
        """Make the visits that wait durable, if this one's state is to become a checkpoint.

        Whether there is nothing to wait for: visits are saved with their epoch, and the one before
        is there.
        """
        saved = state if self.is_due(call) else None
        if saved is None:
            self._states.drop(state)
            if self._spec.checkpoint is Checkpointing.EPOCH:
                return not live.is_saving
        else:
            live.is_saving = True
            self._check_space(state.bytes // len(call.trials))
        waiting, live.waiting = live.waiting, []
        self.put(Commit(waiting, visits=call.visits, attempt=call.attempt, state=saved), live)
        return False

    def put_at_stop(self, live: LiveUnit, state: StateRef) -> None:
        """Make visits durable that wait for the end of their epoch, as the last of them left it."""
        waiting, live.waiting = live.waiting, []
        for record in waiting:
            if record["type"] == "visit":
                record["at_stop"] = True
        live.is_saving = True
        self._states.hold(state)
        commit = Commit(waiting, state=state)
        last = commit.visit
        before = cast(int, last["epoch"]) * self._spec.train_shards
        commit.visits = before + cast(int, last["step"]) + 1
        commit.attempt = cast(int, last["attempt"])
        self.put(commit, live)

    def is_due(self, call: VisitCall) -> bool:
        """Whether the state after this visit becomes a checkpoint."""
        mode, is_last = self._spec.checkpoint, call.step == call.steps - 1
        is_saved = mode is Checkpointing.VISIT or (mode is Checkpointing.EPOCH and is_last)
        return is_saved and call.is_training

    def settle(self, commit: Commit) -> LiveUnit | None:
        """A commit is durable: part of the history from now on. Whose it was."""
        self.pending -= 1
        history = self._run.history
        superfluous = history.apply(*commit.records)
        for record in commit.records:
            self._reporter.durable(record, history)
        if superfluous:
            self.put(Commit([], remove=superfluous))
        self._taking -= {(ref.unit, ref.name) for ref, _ in commit.extracts}
        live = None if commit.unit is None else self._units.get(commit.unit)
        if live is not None:
            live.commits -= 1
            live.reach(commit.visits)
            if live.is_stack and not commit.visits:
                self._thin_out(live.id)
        return live

    def drop(self, commit: Commit) -> LiveUnit:
        """A commit will not be durable, since a state is lost. Whose it was."""
        self.pending -= 1
        self._states.drop(commit.state)
        self._taking -= {(ref.unit, ref.name) for ref, _ in commit.extracts}
        live = self._units[cast(int, commit.unit)]
        live.commits -= 1
        live.is_saving = live.is_saving and commit.state is None
        live.rewinds = max(live.rewinds, commit.rewinds + 1)
        live.forgotten += sum(record["type"] == "visit" for record in commit.records)
        return live

    def roll_back(self, live: LiveUnit) -> bool:
        """Journal that visits without a checkpoint are lost, if there are any; whether so."""
        history = self._run.history
        past = history.stacks[live.id] if live.is_stack else history.trials[live.id]
        visits = past.checkpoints[-1].visits if past.checkpoints else 0
        if visits == past.visits:
            return False
        whose = {"stack": stack_unit(live.id)} if live.is_stack else {"trial": live.id}
        self.put(Commit([{"type": "rollback", **whose, "visits": visits}]), live)
        return True

    def _thin_out(self, unit: int) -> None:
        """Of a stack with many checkpoints, take out of the oldest what is still wanted."""
        history, live = self._run.history, self._units.get(unit)
        for ref, trials in history.extracts(history.stacks[unit]):
            if (unit, ref.name) not in self._taking:
                self._taking.add((unit, ref.name))
                commit = Commit([taken_record(ref)], extracts=[Extract(ref, trials)])
                self.put(commit, live)

    def dissolve(self, live: LiveUnit) -> None:
        """Take all trials out of a stack that has nothing under way."""
        history = self._run.history
        stack = history.stacks[live.id]
        visits = stack.checkpoints[-1].visits if stack.checkpoints else 0
        record: Record = {
            "type": "dissolved",
            "stack": stack_unit(live.id),
            "visits": visits,
            "reason": live.given_up,
            "checkpoints": [],
        }
        self.put(Commit([record], extracts=history.extracts(stack, limit=0)), live)

    def _check_space(self, trial_bytes: int) -> None:
        if not self._has_checked_space:
            self._has_checked_space = True
            check_space(self._run.store, self._spec, self._run.history, state_bytes=trial_bytes)

    def close(self, *, now: bool = False) -> None:
        """Finish what was put; now: as much of it as can be done in a few seconds."""
        if self._committer is not None:
            self._committer.close(now=now)


def taken_record(ref: CheckpointRef) -> Record:
    """The journal record for members that get checkpoints of their own."""
    return {"type": "taken", "stack": stack_unit(ref.unit), "name": ref.name, "checkpoints": []}
