"""The conductor of a search: what is tried next, how far each trial goes, and when it is over."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple, TypeAlias

from cerebro.errors import UsageError
from cerebro.search.checks import check_counts, check_end, check_repeats
from cerebro.search.decision import Clone, Decision, Halt, Outcome, Pause, Promote, Report, Stop
from cerebro.search.entrant import Entrant, Judgement, mean_outcome
from cerebro.search.sampler import Sampler
from cerebro.search.stopper import Stopper
from cerebro.types import Mode, Params, TrialStatus


class Propose(NamedTuple):
    """Make a new trial of these params; it may train once it is promoted."""

    proposal: int
    #: 0, 1, ... for trials of one proposal, which differ in their seeds alone.
    repeat: int
    params: Params


Action: TypeAlias = Propose | Decision


class Conductor:
    """Takes what happened, in journal order, and says what to do: no clock, no files, no chance.

    The same inputs give the same actions, so that a run that was killed feeds it its journal and
    goes on. A trial may train until as many epochs are behind it as its last Promote said; before
    the first, which is among the answers to `added`, not at all. What was told before (a visit or
    epoch behind a trial already, an end of one that has ended) changes nothing.

    Args:
        sampler: What to try.
        stopper: How far each trial goes.
        epochs: Epochs behind a trial at its end.
        concurrent: Trials under way at once; one that waits makes room. None: all.
        objectives: Metrics and modes; a trial counts with the epoch best in the first.
        repeats: Trials of each proposal.
        max_trials: No more trials are proposed than that.
        max_epochs: What all trials together may train; what one that ends has not begun goes back.
        constraints: Metrics and the largest value each may have.

    >>> from cerebro.search.sampler import GridSampler
    >>> from cerebro.search.space import parse_space
    >>> from cerebro.search.stopper import Endless
    >>> sampler = GridSampler(parse_space({"lr": [0.1, 0.01]}))
    >>> conductor = Conductor(
    ...     sampler, Endless(), epochs=2, concurrent=1, objectives=[("val_loss", Mode.MIN)]
    ... )
    >>> conductor.begin()
    [Propose(proposal=0, repeat=0, params={'lr': 0.1})]
    >>> conductor.added(0, {"lr": 0.1}, epochs=0, proposal=0, repeat=0)
    [Promote(trial=0, epochs=2)]
    >>> conductor.evaluated(Report(0, 2, 8, {"val_loss": 0.5}))
    []
    >>> conductor.ended(0, TrialStatus.FINISHED)
    [Propose(proposal=1, repeat=0, params={'lr': 0.01})]
    """

    def __init__(
        self,
        sampler: Sampler,
        stopper: Stopper,
        *,
        epochs: int,
        concurrent: int | None,
        objectives: Sequence[tuple[str, Mode]],
        repeats: int = 1,
        max_trials: int | None = None,
        max_epochs: int | None = None,
        constraints: Sequence[tuple[str, float]] = (),
    ) -> None:
        check_counts(epochs=epochs, repeats=repeats, concurrent=concurrent)
        check_counts(max_trials=max_trials, max_epochs=max_epochs)
        if not objectives:
            raise UsageError("a search needs at least one objective, but got none.")
        check_repeats(repeats, stopper)
        check_end(sampler.num_trials, max_trials, max_epochs, concurrent)
        self._sampler = sampler
        self._stopper = stopper
        self.epochs = epochs
        self.objectives = tuple(objectives)
        self._concurrent = concurrent
        self._judgement = Judgement(objectives, constraints)
        self._repeats = repeats
        self._max_trials = max_trials
        self._max_epochs = max_epochs
        self._entrants: dict[int, Entrant] = {}
        #: Trials that something will be heard of, and those that wait, in order.
        self._under_way: set[int] = set()
        self._waiting: dict[int, None] = {}
        #: Trials that want epochs which nothing was left for, in order.
        self._denied: dict[int, None] = {}
        self._granted = 0
        self._num_asked = 0
        self._num_proposed = 0
        self._has_more = True
        #: What is about to be proposed; what was and is not added yet.
        self._queue: deque[Propose] = deque()
        self._pending: set[tuple[int, int]] = set()
        self._outcomes: dict[int, dict[int, Outcome]] = {}
        self._is_begun = False
        #: Nothing more is decided; the run was ended, and only people let trials go on.
        self._is_halted = False
        self._has_ended = False

    @property
    def is_over(self) -> bool:
        """Whether nothing is under way, waits or is to come; what people paused may be left."""
        if self._is_halted:
            return True
        is_busy = self._under_way or self._waiting or self._pending or self._queue
        return self._is_begun and not is_busy and not self._has_more

    # Inputs

    def begin(self) -> list[Action]:
        """The search begins: the first input."""
        self._is_begun = True
        return self._settle([])

    def added(
        self,
        trial: int,
        params: Params,
        epochs: int,
        proposal: int | None,
        repeat: int = 0,
        limit: int | None = None,
    ) -> list[Action]:
        """A trial was made: for a Propose, as a copy (`proposal` is None), or by a person.

        `epochs` are behind the state that it is a copy of. The trial that a Clone replaces ends
        after this. What a person made from nothing has a `proposal` below 0, which is its own: the
        sampler learns from it. A person may let a copy go beyond the run's epochs, to `limit`.
        """
        if trial in self._entrants:
            return []
        entrant = Entrant(trial, params, proposal, repeat, self.epochs, epochs)
        entrant.begun = entrant.target = min(epochs, limit or self.epochs)
        self._entrants[trial] = entrant
        if proposal is not None:
            self._pending.discard((proposal, repeat))
        # After the end of a run people may add trials, which nobody stops.
        wish = None if self._is_halted else self._stopper.added(trial, params, epochs)
        if limit is not None:
            self._let_go(entrant, limit)
            return self._settle([], trial)
        entrant.wish = self.epochs if wish is None else min(wish, self.epochs)
        return self._settle(self._grant(entrant))

    def visited(self, report: Report) -> list[Action]:
        """A training visit is over."""
        entrant = self._known(report.trial)
        if entrant.status is not None or report.visits <= entrant.visits:
            return []
        entrant.visits = report.visits
        entrant.begun = max(entrant.begun, report.epochs + 1)
        return self._settle(self._carry(self._stopper.visited(report)))

    def evaluated(self, report: Report) -> list[Action]:
        """An epoch is over."""
        entrant = self._known(report.trial)
        if entrant.status is not None or report.epochs <= entrant.epochs:
            return []
        entrant.epochs = report.epochs
        entrant.visits = max(entrant.visits, report.visits)
        if self._judgement.is_better(report.metrics, entrant.best):
            entrant.best = report.metrics
        actions = self._carry(self._stopper.evaluated(report))
        actions += self._grant(entrant)
        if entrant.is_waiting and not self._is_halted:
            self._tell(entrant, TrialStatus.PAUSED)
        return self._settle(actions)

    def ended(self, trial: int, status: TrialStatus) -> list[Action]:
        """A trial reached a final status."""
        entrant = self._known(trial)
        if entrant.status is not None:
            return []
        self._granted -= entrant.unused()
        entrant.status = status
        self._denied.pop(trial, None)
        self._place(entrant)
        self._tell(entrant, status)
        return self._settle(self._carry(self._stopper.ended(trial, status)))

    def halted(self) -> list[Action]:
        """The run is over, whoever decided that: nothing more is proposed, granted or compared."""
        self._is_halted = self._has_ended = True
        for entrant in self._entrants.values():
            if entrant.status is None:
                entrant.status = TrialStatus.STOPPED
                self._place(entrant)
        return []

    def paused(self, trial: int) -> list[Action]:
        """A person holds a trial; it makes room for others."""
        self._known(trial).is_paused = True
        return self._settle([], trial)

    def resumed(self, trial: int) -> list[Action]:
        """A person lets a trial go on; one that waits for a promotion, to its end."""
        entrant = self._known(trial)
        if not entrant.is_paused and entrant.is_waiting:
            return self._settle(self._promote(entrant, entrant.limit), trial)
        entrant.is_paused = False
        return self._settle([], trial)

    def extended(self, trial: int, epochs: int) -> list[Action]:
        """A person lets a trial train on, also one that has ended, until so many are behind it."""
        entrant = self._known(trial)
        if entrant.status is not None:
            if entrant.status.is_failure:
                return []
            entrant.target -= entrant.unused()
        entrant.status, entrant.is_leaving, entrant.is_held = None, False, False
        entrant.is_paused = False
        self._let_go(entrant, epochs)
        return self._settle([Promote(trial, entrant.target)], trial)

    # What follows

    def _known(self, trial: int) -> Entrant:
        entrant = self._entrants.get(trial)
        if entrant is None:
            raise ValueError(f"a trial must be added before other inputs name it, but got {trial}.")
        return entrant

    def _let_go(self, entrant: Entrant, epochs: int) -> None:
        """As far as a person says, whose word counts more than the budget."""
        entrant.limit = max(epochs, self.epochs)
        entrant.wish = max(epochs, entrant.target)
        self._granted += entrant.wish - entrant.target
        entrant.target = entrant.wish
        self._denied.pop(entrant.trial, None)

    def _place(self, entrant: Entrant) -> None:
        """Note whether it is under way or waits."""
        trial = entrant.trial
        if entrant.is_under_way:
            self._under_way.add(trial)
        else:
            self._under_way.discard(trial)
        if entrant.is_waiting and not entrant.is_paused:
            self._waiting[trial] = None
        else:
            self._waiting.pop(trial, None)

    def _left(self) -> int | None:
        """Epochs that may still be granted; one is kept for each trial about to be added."""
        if self._max_epochs is None or self._is_halted:
            return None
        return max(self._max_epochs - self._granted - len(self._pending), 0)

    def _grant(self, entrant: Entrant) -> list[Action]:
        """Let it go as far as it wishes and the budget allows."""
        wanted = min(entrant.wish, entrant.limit) - entrant.target
        actions: list[Action] = []
        if entrant.is_live and wanted > 0:
            left = self._left()
            given = wanted if left is None else min(wanted, left)
            entrant.target += given
            self._granted += given
            self._denied.pop(entrant.trial, None)
            if given:
                actions.append(Promote(entrant.trial, entrant.target))
            else:
                self._denied[entrant.trial] = None
        self._place(entrant)
        return actions

    def _carry(self, decisions: Sequence[Decision]) -> list[Action]:
        """The stopper's decisions as far as they still have an effect."""
        actions: list[Action] = []
        for decision in decisions:
            if self._is_halted:
                break
            if isinstance(decision, Halt):
                self._is_halted = True
                actions.append(decision)
                break
            entrant = self._known(decision.trial)
            if not entrant.is_live:
                continue
            if isinstance(decision, Promote):
                actions += self._promote(entrant, decision.epochs)
                continue
            entrant.is_held = entrant.is_held or isinstance(decision, Pause)
            entrant.is_leaving = isinstance(decision, Stop | Clone)
            self._place(entrant)
            actions.append(decision)
        return actions

    def _promote(self, entrant: Entrant, epochs: int) -> list[Action]:
        was_held, entrant.is_held = entrant.is_held, False
        entrant.wish = max(entrant.wish, epochs)
        actions = self._grant(entrant)
        # One that was held before its target goes on to it.
        if was_held and not actions and not entrant.is_waiting:
            actions.append(Promote(entrant.trial, entrant.target))
        return actions

    def _settle(self, actions: list[Action], trial: int | None = None) -> list[Action]:
        """Those, then what was denied, new trials, and the end where nothing else can happen."""
        if trial is not None:
            self._place(self._entrants[trial])
        if self._has_ended:
            return [*actions, *self._dismiss()]
        if not self._is_begun or self._is_halted:
            return actions
        for denied in list(self._denied):
            actions += self._grant(self._entrants[denied])
        actions += self._propose()
        if not self._under_way and not self._pending:
            actions += self._wind_up()
        return actions

    def _propose(self) -> list[Action]:
        actions: list[Action] = []
        while self._has_room() and self._fill():
            proposal = self._queue.popleft()
            self._pending.add((proposal.proposal, proposal.repeat))
            self._num_proposed += 1
            actions.append(proposal)
        return actions

    def _has_room(self) -> bool:
        # With a budget one by one: what the next may have is known once this one has its share.
        if self._max_epochs is not None and (self._pending or not self._left()):
            return False
        if self._concurrent is None:
            return True
        return len(self._under_way) + len(self._pending) < self._concurrent

    def _fill(self) -> bool:
        """Whether there is something to propose."""
        if not self._queue and self._has_more:
            most = self._max_trials
            number = self._num_asked
            is_full = most is not None and self._num_proposed + self._repeats > most
            params = None if is_full else self._sampler.ask(number)
            if params is None:
                self._has_more = False
            else:
                self._num_asked += 1
                self._queue.extend(Propose(number, i, params) for i in range(self._repeats))
        return bool(self._queue)

    def _wind_up(self) -> list[Action]:
        """Nothing is under way: who waits goes on at the stopper's word, or ends."""
        actions: list[Action] = []
        if self._waiting:
            actions += self._carry(self._stopper.exhausted())
        if self._under_way or self._is_halted:
            return actions
        if self._max_epochs is not None and (self._denied or self._fill()):
            self._is_halted = True
            actions.append(Halt(f"the budget of {self._max_epochs} epochs is used up"))
            return actions
        return [*actions, *self._dismiss()]

    def _dismiss(self) -> list[Action]:
        """Whoever waits ends: nobody will let it go on."""
        actions: list[Action] = []
        for entrant in [self._entrants[trial] for trial in self._waiting]:
            entrant.is_leaving = True
            self._place(entrant)
            actions.append(Stop(entrant.trial, f"not promoted beyond epoch {entrant.epochs}"))
        return actions

    def _tell(self, entrant: Entrant, status: TrialStatus) -> None:
        """Tell the sampler, once the last repeat has ended."""
        number = entrant.proposal
        if number is None:
            return
        outcome = self._judgement.outcome(entrant.best, status)
        if self._repeats > 1 and number >= 0:
            if not status.is_final:
                return
            outcomes = self._outcomes.setdefault(number, {})
            outcomes[entrant.repeat] = outcome
            if len(outcomes) < self._repeats:
                return
            outcome = mean_outcome([outcomes[repeat] for repeat in sorted(outcomes)])
        self._sampler.tell(number, entrant.params, outcome)
