"""What a run will do and how long that takes, told before it starts."""

from __future__ import annotations

import dataclasses
import logging
import math
from dataclasses import dataclass

from cerebro.data import Dataset
from cerebro.run.earlier import Place, find_measured
from cerebro.run.estimate import Measured, estimate_s
from cerebro.run.history import RunHistory
from cerebro.run.recovery import load_history
from cerebro.run.rehearsal import MOST_VISITS, rehearse
from cerebro.run.request import BATCH_SIZES, Request
from cerebro.run.spec import Checkpointing, RunSpec
from cerebro.search.budget import written_duration
from cerebro.search.domain import Domain
from cerebro.search.sampler import Sampler
from cerebro.storage import layout
from cerebro.types import Split

__all__ = ["Place", "Plan", "expect_s", "predict_s", "warn_of_plan"]

#: Up to so many trials each one's cost is looked up; above, all cost the mean.
_LOOKED_UP = 10_000
#: So far along a range is its end.
_END = math.nextafter(1.0, 0.0)

logger = logging.getLogger("cerebro.run")


@dataclass(frozen=True, slots=True)
class Plan:
    """What a run of an experiment would do."""

    request: Request
    dataset: Dataset
    place: Place
    spec: RunSpec
    sampler: Sampler
    workers: int

    @property
    def repeats(self) -> int:
        """Trials of each proposal."""
        return max(self.spec.seeds, self.spec.folds)

    @property
    def wanted(self) -> int:
        """Trials, whatever the budget."""
        return self.repeats * (self.sampler.num_trials or 0)

    @property
    def trials(self) -> int:
        most = int(self.spec.budget.get("trials", self.wanted))
        # A configuration is tried with all its repeats, or not.
        return min(self.wanted, most - most % self.repeats)

    @property
    def epochs(self) -> int:
        """Of all trials together; at most, where some may end early."""
        planned = self.trials * self.spec.epochs
        return min(planned, planned if self.spec.max_epochs is None else self.spec.max_epochs)

    @property
    def is_open(self) -> bool:
        """Whether results decide how much is trained."""
        return bool(self.spec.stopper or self.spec.goal)

    @property
    def train_visits(self) -> int:
        return self.epochs * self.spec.train_shards

    @property
    def eval_visits(self) -> int:
        return self.epochs * self.spec.val_shards

    @property
    def checkpoints(self) -> int:
        kind = self.spec.checkpoint
        per_epoch = {Checkpointing.VISIT: self.spec.train_shards, Checkpointing.EPOCH: 1}
        return self.epochs * per_epoch.get(kind, 0)

    @property
    def epoch_bytes(self) -> int:
        """Read in an epoch of a trial."""
        splits = [Split.TRAIN] if self.spec.folds else [Split.TRAIN, Split.VAL]
        return sum(shard.bytes for split in splits for shard in self.dataset.shards(split))


def predict_s(plan: Plan, measured: Measured) -> float:
    """The makespan, were every trial trained to its end or to that of the budget's epochs."""
    if plan.sampler.is_adaptive or plan.trials > _LOOKED_UP:
        seconds = [measured.mean_s] * min(plan.trials, _LOOKED_UP)
    else:
        numbers = (number // plan.repeats for number in range(plan.trials))
        seconds = [measured.seconds_of(plan.sampler.ask(number) or {}) for number in numbers]
    size = measured.stack_size
    stacks = [sum(seconds[first : first + size]) for first in range(0, len(seconds), size)]
    whole = estimate_s(
        stacks,
        workers=plan.workers,
        epochs=plan.spec.epochs,
        train_shards=plan.spec.train_shards,
        val_shards=plan.spec.val_shards,
        eval_share=measured.eval_share,
    )
    return whole * plan.epochs / (len(seconds) * plan.spec.epochs)


def expect_s(plan: Plan, measured: Measured) -> float:
    """The makespan that is likeliest; with a stopper, that of the search played through."""
    if not plan.is_open or plan.train_visits + plan.eval_visits > MOST_VISITS:
        return predict_s(plan, measured)
    request = plan.request
    if plan.sampler.is_adaptive:
        # What it costs is asked here, not what it finds: no need to wait for its proposals.
        trials = plan.sampler.num_trials
        request = dataclasses.replace(request, search="random", num_trials=trials, known=())
    where = plan.dataset, plan.place
    return rehearse(request, *where, workers=plan.workers, measured=measured)[0].makespan_s


def warn_of_plan(plan: Plan, *, is_fresh: bool) -> None:
    """Say so, before a run begins or goes on, if it will not be what was asked for."""
    cut = _cut_batches(plan)
    if cut is None and not plan.spec.budget:
        return
    store = plan.place.store.child(plan.place.name)
    history = None
    if store.exists(layout.RUN) and not is_fresh:
        history = load_history(store)[1]
        if history.is_finished:
            return
    if cut is not None:
        logger.warning("%s", cut)
    if plan.spec.budget:
        _warn_of_budget(plan, history)


def _warn_of_budget(plan: Plan, history: RunHistory | None) -> None:
    """What is known of a budget that is not enough for all that is planned."""
    for told in (_lacking_trials(plan), _lacking_epochs(plan)):
        if told is not None:
            logger.warning("%s", told)
    seconds = plan.spec.budget.get("seconds")
    measured = None if seconds is None else find_measured(plan.place, plan.dataset)[0]
    if seconds is None or measured is None:
        return
    needed_s, left_s = expect_s(plan, measured), seconds
    if history is not None:
        done = sum(trial.visits for trial in history.trials.values())
        needed_s *= max(0.0, 1 - done / max(1, plan.train_visits))
        left_s -= history.spent_s + history.driver_s
    if needed_s > left_s:
        logger.warning(
            "the budget of %s is not enough: about %s are needed; the run will end when it is used "
            "up",
            *(written_duration(seconds), written_duration(needed_s)),
        )


def _cut_batches(plan: Plan) -> str | None:
    """Learning rates were chosen for the batches that were asked for."""
    names = [name for name in BATCH_SIZES if name in plan.spec.space]
    varied = [{name: size} for name in names for size in _sizes(plan.request.space[name])]
    # What is no size at all, the run will tell.
    asked = max(map(plan.spec.batch_size_of, varied if names else [{}]), default=0)
    shards = plan.dataset.shards(Split.TRAIN)
    rows = max(shard.rows for shard in shards)
    if asked <= rows:
        return None
    who = " for all workers of a trial" if plan.spec.gang > 1 else ""
    todo = ": fewer shards make larger batches possible" if len(shards) > 1 else ""
    return (
        f"a batch of {asked} rows{who} is cut to the {rows} of a shard, as a step takes rows of "
        f"one{todo}"
    )


def _sizes(domain: Domain) -> list[int]:
    """Those that are listed, or the largest one of a range."""
    count = domain.num_listed()
    found = [domain.at(_END)] if count is None else [domain.nth(n) for n in range(count)]
    return [size for size in found if type(size) is int]


def _lacking_trials(plan: Plan) -> str | None:
    if plan.trials >= plan.wanted:
        return None
    return (
        f"the budget of {plan.spec.budget['trials']:.0f} trials is not enough: the search has "
        f"{plan.wanted}; {plan.wanted - plan.trials} of them will not be tried"
    )


def _lacking_epochs(plan: Plan) -> str | None:
    """Trials are begun one after another, as long as there are epochs left to give."""
    most, trials, epochs = plan.spec.max_epochs, plan.trials, plan.spec.epochs
    if most is None or trials * epochs <= most:
        return None
    if plan.is_open:
        # How far a stopper lets them go is not known, but that each is trained at all.
        if plan.spec.goal or trials <= most:
            return None
        told = f"at least {trials - most} will not be trained"
        return f"{_epochs_short(plan)} {trials} trials; {told}"
    whole, rest = divmod(most, epochs)
    parts = [f"{whole} will be trained to the end"]
    parts += [f"1 for {rest} of {epochs} epochs"] if rest else []
    left = trials - whole - bool(rest)
    parts += [f"{left} not at all"] if left else []
    needed = f"{_epochs_short(plan)} the {trials * epochs} of {trials} trials"
    return f"{needed}: {', '.join(parts)}, unless others end early"


def _epochs_short(plan: Plan) -> str:
    budget, most = plan.spec.budget, plan.spec.max_epochs
    is_of_epochs = budget.get("epochs") == most
    given = f"{most} epochs" if is_of_epochs else f"{budget['visits']:.0f} visits ({most} epochs)"
    return f"the budget of {given} is not enough for"
