"""What every stopper must do, as a suite of tests.

Subclass it in a test module, name the subclass `Test...`, and write `make`.
"""

from __future__ import annotations

import json
import random
from collections import deque
from dataclasses import dataclass
from typing import ClassVar

from cerebro.search.decision import Clone, Decision, Halt, Pause, Promote, Report, Stop
from cerebro.search.stopper import Stopper
from cerebro.types import Json, Metrics, Params, TrialStatus

_SEEDS = range(30)
_ENDS = (TrialStatus.FAILED, TrialStatus.DIVERGED, TrialStatus.OUT_OF_MEMORY, TrialStatus.STOPPED)


class StopperContract:
    """Tests that hold for any stopper of runs of `epochs` epochs that goes by `metric`.

    >>> from cerebro.search.stopper import Endless
    >>> class TestMyStopper(StopperContract):
    ...     def make(self):
    ...         return Endless()
    >>> TestMyStopper().test_every_trial_ends_whatever_happens()
    """

    epochs = 9
    metric = "val_loss"
    params: ClassVar[Params] = {"lr": 0.5}

    def make(self) -> Stopper:
        """A fresh stopper, with the same arguments every time."""
        raise NotImplementedError("write make(self)")

    def remake(self, description: dict[str, Json]) -> Stopper:
        """The stopper of this description; as `make_stopper` makes it for the same run."""
        raise NotImplementedError("write remake(self, description)")

    def test_its_description_makes_it_again(self) -> None:
        described = self.make().describe()
        again = json.loads(json.dumps(described, allow_nan=False))
        assert again == described
        assert self.remake(again).describe() == described

    def test_a_stopper_made_again_decides_the_same(self) -> None:
        for seed in _SEEDS:
            assert self._play(seed).log == self._play(seed, self.remake(self._describe())).log

    def test_the_same_tells_give_the_same_decisions(self) -> None:
        for seed in _SEEDS:
            assert self._play(seed).log == self._play(seed).log

    def test_every_trial_ends_whatever_happens(self) -> None:
        for seed in _SEEDS:
            session = self._play(seed)
            assert session.halted or all(trial.has_ended for trial in session.trials)

    def test_a_trial_that_ended_is_of_no_concern(self) -> None:
        stopper = self.make()
        stopper.added(0, self.params, 0)
        stopper.ended(0, TrialStatus.STOPPED)
        late = Report(0, 1, 4, {})
        assert stopper.visited(late) == []
        assert stopper.evaluated(late) == []
        assert stopper.ended(0, TrialStatus.STOPPED) == []
        assert stopper.exhausted() == []

    def test_a_report_without_the_metric_is_no_error(self) -> None:
        stopper = self.make()
        stopper.added(0, self.params, 0)
        stopper.evaluated(Report(0, 1, 4, {}))
        stopper.added(1, self.params, 0)
        stopper.evaluated(Report(1, 1, 4, {self.metric: float("nan")}))

    def _describe(self) -> dict[str, Json]:
        return self.make().describe()

    def _play(self, seed: int, stopper: Stopper | None = None) -> _Session:
        session = _Session(stopper or self.make(), self, random.Random(seed))  # noqa: S311
        session.run()
        return session


@dataclass(slots=True)
class _Trial:
    epochs: int
    target: int
    has_ended: bool = False


class _Session:
    """A run in which trials come, report, fail and are stopped in any order."""

    def __init__(self, stopper: Stopper, contract: StopperContract, rng: random.Random) -> None:
        self.stopper = stopper
        self.contract = contract
        self.rng = rng
        self.trials: list[_Trial] = []
        self.num_planned = rng.randint(1, 20)
        self.halted = False
        self.log: list[Decision] = []
        self.todo: deque[Decision] = deque()

    def run(self) -> None:
        budget = 100 * self.contract.epochs
        while not self.halted and self.step():
            self.carry_out()
            budget -= 1
            assert budget, "the search does not end"

    def step(self) -> bool:
        """One thing happens; False where nothing is left to."""
        under_way = [n for n, t in enumerate(self.trials) if self.is_under_way(t)]
        if self.num_planned and (not under_way or self.rng.random() < 0.3):
            self.num_planned -= 1
            # People add trials too, and copies.
            self.add(self.rng.choice((0, 0, 0, 0, 1)))
            return True
        if under_way:
            self.hear_of(self.rng.choice(under_way))
            return True
        waiting = [n for n, trial in enumerate(self.trials) if not trial.has_ended]
        if not waiting:
            return False
        self.decide(self.stopper.exhausted())
        self.carry_out()
        for number in waiting:
            if not self.is_under_way(self.trials[number]):
                self.end(number, TrialStatus.STOPPED)
        return True

    def is_under_way(self, trial: _Trial) -> bool:
        return not trial.has_ended and trial.epochs < trial.target

    def hear_of(self, number: int) -> None:
        """The trial reports an epoch, ends in some way, or somebody who has ended is heard of."""
        ended = [n for n, trial in enumerate(self.trials) if trial.has_ended]
        if ended and self.rng.random() < 0.1:
            late = self.rng.choice(ended)
            epochs = self.trials[late].epochs + 1
            self.decide(self.stopper.evaluated(Report(late, epochs, 4 * epochs, self.metrics())))
        if self.rng.random() < 0.1:
            self.end(number, self.rng.choice(_ENDS))
            return
        trial = self.trials[number]
        visits = 4 * trial.epochs
        self.decide(self.stopper.visited(Report(number, trial.epochs, visits + 1, {})))
        trial.epochs += 1
        report = Report(number, trial.epochs, visits + 4, self.metrics())
        self.decide(self.stopper.evaluated(report))
        self.carry_out()
        if trial.epochs == self.contract.epochs and not trial.has_ended:
            self.end(number, TrialStatus.FINISHED)

    def metrics(self) -> Metrics:
        value = self.rng.choice((self.rng.random(), self.rng.random(), 0.5, float("nan")))
        return {self.contract.metric: value}

    def add(self, epochs: int) -> None:
        number = len(self.trials)
        target = self.stopper.added(number, self.contract.params, epochs)
        assert target is None or target > epochs
        self.trials.append(
            _Trial(epochs, min(target or self.contract.epochs, self.contract.epochs))
        )

    def end(self, number: int, status: TrialStatus) -> None:
        trial = self.trials[number]
        if not trial.has_ended:
            trial.has_ended = True
            self.decide(self.stopper.ended(number, status))

    def decide(self, decisions: list[Decision]) -> None:
        for decision in decisions:
            self.check(decision)
        self.log += decisions
        self.todo += decisions

    def check(self, decision: Decision) -> None:
        if isinstance(decision, Halt):
            return
        assert 0 <= decision.trial < len(self.trials), "a decision is about a trial that exists"
        trial = self.trials[decision.trial]
        assert not trial.has_ended, "a decision is about a trial that has not ended"
        if isinstance(decision, Promote):
            assert trial.epochs < decision.epochs <= self.contract.epochs
        else:
            assert decision.reason
        if isinstance(decision, Clone):
            assert decision.source != decision.trial
            assert not self.trials[decision.source].has_ended

    def carry_out(self) -> None:
        while self.todo:
            decision = self.todo.popleft()
            if isinstance(decision, Halt):
                self.halted = True
            elif isinstance(decision, Promote):
                self.trials[decision.trial].target = decision.epochs
            elif isinstance(decision, Pause):
                self.trials[decision.trial].target = self.trials[decision.trial].epochs
            elif isinstance(decision, Clone):
                self.add(self.trials[decision.source].epochs)
                self.end(decision.trial, TrialStatus.STOPPED)
            elif isinstance(decision, Stop):
                self.end(decision.trial, TrialStatus.STOPPED)
