"""A whole search in simulated time, through the real conductor and the real planner."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import NamedTuple, TypeAlias

from cerebro import mop
from cerebro.search.conductor import Action, Conductor, Propose
from cerebro.search.curves import Curve
from cerebro.search.decision import Clone, Halt, Promote, Report, Stop
from cerebro.search.scale import Scale
from cerebro.types import Params, TrialStatus

#: (trial, epochs behind it) -> the status it ends with there, or None.
Failure: TypeAlias = Callable[[int, int], TrialStatus | None]
#: Seconds of a visit: the same for all, or by trial.
Seconds: TypeAlias = float | Callable[[int], float]


class Incumbent(NamedTuple):
    """A result that was the best so far."""

    time_s: float
    #: Epochs that all trials had trained by then.
    epochs: int
    trial: int
    value: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSimulation:
    """What a simulated search took, and what it found."""

    makespan_s: float
    #: The share of the makespan that each worker spent on visits.
    busy: tuple[float, ...]
    #: When the last trial was proposed, and the share of all workers' time spent on visits so far.
    proposed_s: float
    busy_while_proposing: float
    #: Epochs that were trained, over all trials.
    epochs: int
    statuses: Mapping[int, TrialStatus]
    #: Epochs behind each trial at its end.
    epochs_of: Mapping[int, int]
    #: (trial, best value of the first objective), best first.
    leaderboard: tuple[tuple[int, float], ...]
    incumbents: tuple[Incumbent, ...]
    #: Epochs behind a trial when it was promoted -> how many were.
    promotions: Mapping[int, int]
    #: Why the run was ended, if it was.
    halted: str | None
    #: Each clone and the trial whose state it began with.
    sources: Mapping[int, int] = field(default_factory=dict)

    def first_to(self, is_reached: Callable[[float], bool]) -> Incumbent | None:
        """The first best result for which this holds."""
        return next((one for one in self.incumbents if is_reached(one.value)), None)


def simulate_search(
    conductor: Conductor,
    *,
    curve: Curve,
    workers: int,
    train_shards: int,
    visit_s: Seconds,
    val_shards: int = 0,
    eval_s: Seconds = 0.0,
    failure: Failure | None = None,
) -> SearchSimulation:
    """Run a search to its end.

    Args:
        conductor: The search; a fresh one.
        curve: What trials report.
        workers: How many there are.
        train_shards: Train visits in an epoch.
        visit_s: What one takes.
        val_shards: Eval visits in an epoch.
        eval_s: What one takes.
        failure: Which trials fail, and when.

    >>> from cerebro.search.curves import power_law
    >>> from cerebro.search.sampler import GridSampler
    >>> from cerebro.search.space import parse_space
    >>> from cerebro.search.stopper import Endless
    >>> from cerebro.types import Mode
    >>> search = Conductor(
    ...     GridSampler(parse_space({"lr": [0.1, 0.01]})), Endless(),
    ...     epochs=3, concurrent=2, objectives=[("val_loss", Mode.MIN)],
    ... )
    >>> simulate_search(
    ...     search, curve=power_law(0), workers=2, train_shards=4, visit_s=1.0
    ... ).makespan_s
    12.0
    """
    world = _World(conductor, curve, failure, mop.Planner(train_shards, val_shards, max_lag=None))
    world.visit_s = {mop.Phase.TRAIN: _by_trial(visit_s), mop.Phase.EVAL: _by_trial(eval_s)}
    world.busy_s = [0.0] * workers
    for worker in range(workers):
        world.handle(mop.WorkerJoined(worker))
    world.act(conductor.begin())
    world.run()
    return world.result()


@dataclass(slots=True)
class _Trial:
    number: int
    params: Params
    epochs: int
    target: int = 0
    visits: int = 0
    is_planned: bool = False
    best: float | None = None
    status: TrialStatus = TrialStatus.PENDING


class _World:
    """Workers, trials and a clock."""

    def __init__(
        self, conductor: Conductor, curve: Curve, failure: Failure | None, planner: mop.Planner
    ) -> None:
        self.conductor = conductor
        self.curve = curve
        self.failure = failure
        self.planner = planner
        self.visit_s: dict[mop.Phase, Callable[[int], float]] = {}
        self.scale = Scale(*conductor.objectives[0])
        self.trials: list[_Trial] = []
        self.events: list[tuple[float, int, mop.VisitDone]] = []
        self.num_events = 0
        self.now = 0.0
        self.busy_s: list[float] = []
        #: Of visits that run: how many, and the sum of their beginnings.
        self.num_running = 0
        self.begun_s = 0.0
        self.proposed = (0.0, 0.0)
        self.num_epochs = 0
        self.incumbents: list[Incumbent] = []
        self.promotions: Counter[int] = Counter()
        self.sources: dict[int, int] = {}
        self.halted: str | None = None
        #: What is to be done, in order; nothing is while something is being done.
        self.todo: deque[Action] = deque()
        self.is_acting = False

    def run(self) -> None:
        while self.events and self.halted is None:
            self.now, _, done = heappop(self.events)
            self.num_running -= 1
            self.begun_s -= self.now - done.seconds
            self.busy_s[done.worker] += done.seconds
            trial = self.trials[done.unit]
            if done.phase is mop.Phase.TRAIN and not trial.status.is_final:
                trial.visits += 1
                report = Report(trial.number, trial.epochs, trial.visits, {})
                actions = self.conductor.visited(report)
                self.handle(done)
                self.act(actions)
            else:
                self.handle(done)

    def handle(self, event: mop.Event) -> None:
        """Let the planner know, and do as it says."""
        ended: list[mop.EpochEnded] = []
        for instruction in self.planner.handle(event):
            if isinstance(instruction, mop.Start):
                self.start(instruction)
            elif isinstance(instruction, mop.EpochEnded):
                ended.append(instruction)
            elif isinstance(instruction, mop.UnitFinished):
                self.trials[instruction.unit].is_planned = False
        for epoch in ended:
            self.evaluate(self.trials[epoch.unit])

    def start(self, start: mop.Start) -> None:
        visit, _, (worker,) = start
        seconds = self.visit_s[visit.phase](visit.unit)
        done = mop.VisitDone(
            visit.unit, visit.epoch, visit.step, visit.phase, visit.attempt, worker, seconds
        )
        self.num_events += 1
        self.num_running += 1
        self.begun_s += self.now
        heappush(self.events, (self.now + seconds, self.num_events, done))

    def evaluate(self, trial: _Trial) -> None:
        """An epoch is over: report it, or fail."""
        trial.epochs += 1
        self.num_epochs += 1
        status = self.failure(trial.number, trial.epochs) if self.failure else None
        if status is not None:
            self.end(trial, status)
            return
        metrics = self.curve(trial.number, trial.params, trial.epochs)
        value = metrics[self.scale.metric]
        score = self.scale.score(metrics)
        if trial.best is None or score > self.scale.score({self.scale.metric: trial.best}):
            trial.best = value
        best = self.incumbents[-1].value if self.incumbents else None
        if best is None or score > self.scale.score({self.scale.metric: best}):
            self.incumbents.append(Incumbent(self.now, self.num_epochs, trial.number, value))
        self.act(
            self.conductor.evaluated(Report(trial.number, trial.epochs, trial.visits, metrics))
        )
        if trial.epochs >= self.conductor.epochs and not trial.status.is_final:
            self.end(trial, TrialStatus.FINISHED)
        else:
            self.plan(trial)

    def act(self, actions: list[Action]) -> None:
        """Carry out actions, and what they lead to, in order."""
        self.todo.extend(actions)
        if self.is_acting:
            return
        self.is_acting = True
        while self.todo and self.halted is None:
            action = self.todo.popleft()
            if isinstance(action, Propose):
                busy = sum(self.busy_s) + self.num_running * self.now - self.begun_s
                self.proposed = (self.now, busy)
                self.add(action.params, 0, action.proposal, action.repeat)
            elif isinstance(action, Promote):
                trial = self.trials[action.trial]
                if trial.target:
                    self.promotions[trial.epochs] += 1
                trial.target = action.epochs
                self.plan(trial)
            elif isinstance(action, Clone):
                epochs = self.trials[action.source].epochs
                self.sources[len(self.trials)] = action.source
                self.add(action.params, epochs, None, 0)
                self.end(self.trials[action.trial], TrialStatus.STOPPED)
            elif isinstance(action, Stop):
                self.end(self.trials[action.trial], TrialStatus.STOPPED)
            elif isinstance(action, Halt):
                self.halted = action.reason
        self.is_acting = False

    def add(self, params: Params, epochs: int, proposal: int | None, repeat: int) -> None:
        trial = _Trial(len(self.trials), params, epochs)
        self.trials.append(trial)
        self.act(self.conductor.added(trial.number, params, epochs, proposal, repeat))

    def plan(self, trial: _Trial) -> None:
        """Let a trial train up to its target, if it does not yet."""
        is_wanted = trial.target > trial.epochs and not trial.status.is_final
        if trial.is_planned or not is_wanted:
            return
        trial.is_planned = True
        trial.status = TrialStatus.RUNNING
        unit = mop.Unit(trial.number, (trial.number,), trial.number, trial.target)
        self.handle(mop.UnitAdded(unit, epoch=trial.epochs))

    def end(self, trial: _Trial, status: TrialStatus) -> None:
        if trial.status.is_final:
            return
        trial.status = status
        if trial.number in self.planner.units:
            self.handle(mop.UnitStopped(trial.number))
        self.act(self.conductor.ended(trial.number, status))

    def result(self) -> SearchSimulation:
        for trial in self.trials:
            if self.halted is not None and not trial.status.is_final:
                trial.status = TrialStatus.STOPPED
        now = self.now or 1.0
        proposed_s, proposed_busy_s = self.proposed
        scores = {
            trial.number: self.scale.score({self.scale.metric: trial.best})
            for trial in self.trials
            if trial.best is not None
        }
        ranked = sorted(scores, key=lambda number: (-scores[number], number))
        return SearchSimulation(
            makespan_s=self.now,
            busy=tuple(seconds / now for seconds in self.busy_s),
            proposed_s=proposed_s,
            busy_while_proposing=proposed_busy_s / ((proposed_s or 1.0) * len(self.busy_s)),
            epochs=self.num_epochs,
            statuses={trial.number: trial.status for trial in self.trials},
            epochs_of={trial.number: trial.epochs for trial in self.trials},
            leaderboard=tuple((n, self.trials[n].best or 0.0) for n in ranked),
            incumbents=tuple(self.incumbents),
            promotions=dict(self.promotions),
            halted=self.halted,
            sources=self.sources,
        )


def _by_trial(seconds: Seconds) -> Callable[[int], float]:
    return seconds if callable(seconds) else lambda trial: seconds
