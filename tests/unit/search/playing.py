"""A driver for conductors in tests: carries out actions, and lets anything happen in between."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.search.conductor import Action, Conductor, Propose
from cerebro.search.decision import Clone, Halt, Outcome, Pause, Promote, Report, Stop
from cerebro.search.space import Space, parse_space
from cerebro.types import Params, TrialStatus

SPACE: Space = parse_space({"lr": {"uniform": [0, 1]}})


class ListSampler:
    """Proposes what it was given, and remembers what it was told."""

    is_adaptive = True

    def __init__(self, proposals: Sequence[Params]) -> None:
        self.proposals = proposals
        self.num_trials: int | None = len(proposals)
        self.told: list[tuple[int, Outcome]] = []

    def ask(self, number: int) -> Params | None:
        return self.proposals[number] if number < len(self.proposals) else None

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        assert params == self.proposals[number]
        self.told.append((number, outcome))


def sampler(count: int) -> ListSampler:
    return ListSampler([{"lr": (number + 1) / (count + 1)} for number in range(count)])


@dataclass
class Played:
    params: Params
    epochs: int
    target: int
    visits: int = 0
    status: TrialStatus | None = None
    is_paused: bool = False
    is_held: bool = False

    @property
    def can_train(self) -> bool:
        return (
            self.status is None
            and not (self.is_paused or self.is_held)
            and self.epochs < self.target
        )


class Play:
    """One run. Every input is kept with what it led to, so that it can be fed again."""

    def __init__(self, conductor: Conductor, seed: int, *, people: bool = False) -> None:
        self.conductor = conductor
        self.rng = random.Random(seed)
        self.people = people
        self.trials: list[Played] = []
        self.todo: deque[Action] = deque()
        self.halted: str | None = None
        self.inputs: list[tuple[str, tuple[object, ...]]] = []
        self.answers: list[list[Action]] = []
        self.num_epochs = 0
        self.most_under_way = 0

    def feed(self, name: str, *arguments: object) -> None:
        actions = getattr(self.conductor, name)(*arguments)
        self.inputs.append((name, arguments))
        self.answers.append(actions)
        self.todo += actions

    def run(self) -> None:
        self.feed("begin")
        budget = 5000
        while self.halted is None and (self.todo or self.step()):
            while self.todo and self.halted is None:
                self.act(self.todo.popleft())
            under_way = sum(trial.can_train for trial in self.trials)
            self.most_under_way = max(self.most_under_way, under_way)
            budget -= 1
            assert budget, "the search does not end"

    def act(self, action: Action) -> None:
        if isinstance(action, Propose):
            self.add(action.params, 0, action.proposal, action.repeat)
        elif isinstance(action, Halt):
            self.halted = action.reason
        elif self.trials[action.trial].status is not None:
            return
        elif isinstance(action, Promote):
            trial = self.trials[action.trial]
            assert action.epochs >= trial.target
            trial.target, trial.is_held = action.epochs, False
        elif isinstance(action, Pause):
            self.trials[action.trial].is_held = True
        elif isinstance(action, Clone):
            self.add(action.params, self.trials[action.source].epochs, None, 0)
            self.end(action.trial, TrialStatus.STOPPED)
        elif isinstance(action, Stop):
            self.end(action.trial, TrialStatus.STOPPED)

    def step(self) -> bool:
        """Something happens; False where nothing can."""
        able = [number for number, trial in enumerate(self.trials) if trial.can_train]
        paused = [
            number
            for number, trial in enumerate(self.trials)
            if trial.is_paused and trial.status is None
        ]
        if paused and (not able or self.rng.random() < 0.2):
            number = self.rng.choice(paused)
            self.trials[number].is_paused = False
            self.feed("resumed", number)
            return True
        if not able:
            return False
        number = self.rng.choice(able)
        if self.people and self.rng.random() < 0.1:
            self.interfere(number)
        elif self.rng.random() < 0.05:
            self.end(number, self.rng.choice((TrialStatus.FAILED, TrialStatus.DIVERGED)))
        else:
            self.train(number)
        return True

    def interfere(self, number: int) -> None:
        kind = self.rng.choice(("pause", "stop", "add", "unpause"))
        if kind == "pause":
            self.trials[number].is_paused = True
            self.feed("paused", number)
        elif kind == "stop":
            self.end(number, TrialStatus.STOPPED)
        elif kind == "add" and len(self.trials) < 60:
            self.add({"lr": self.rng.random()}, 0, None, 0)
        else:
            # One that waits for a promotion, perhaps.
            live = [n for n, trial in enumerate(self.trials) if trial.status is None]
            number = self.rng.choice(live)
            if not self.trials[number].is_paused:
                self.feed("resumed", number)

    def train(self, number: int) -> None:
        """An epoch of two visits; now and then something is told twice, as after a rollback."""
        trial = self.trials[number]
        for _ in range(2):
            trial.visits += 1
            self.feed("visited", Report(number, trial.epochs, trial.visits, {"train_loss": 1.0}))
        trial.epochs += 1
        self.num_epochs += 1
        metrics = {"val_loss": self.rng.choice((self.rng.random(), 0.5, float("nan")))}
        report = Report(number, trial.epochs, trial.visits, metrics)
        self.feed("evaluated", report)
        if self.rng.random() < 0.1:
            self.feed("evaluated", report)
            assert self.answers[-1] == []
        while self.todo and self.halted is None:
            self.act(self.todo.popleft())
        if trial.epochs >= self.conductor.epochs:
            self.end(number, TrialStatus.FINISHED)

    def add(self, params: Params, epochs: int, proposal: int | None, repeat: int) -> None:
        number = len(self.trials)
        self.trials.append(Played(params, epochs, epochs, 2 * epochs))
        self.feed("added", number, params, epochs, proposal, repeat)
        if epochs >= self.conductor.epochs:
            self.end(number, TrialStatus.FINISHED)

    def end(self, number: int, status: TrialStatus) -> None:
        if self.trials[number].status is None:
            self.trials[number].status = status
            self.feed("ended", number, status)
