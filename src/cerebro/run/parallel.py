"""How many workers train a trial together: as asked for, or as it pays."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Literal, SupportsIndex, TypeAlias, cast

from cerebro.errors import UsageError
from cerebro.search.wording import show, unknown
from cerebro.track.text import show_workers
from cerebro.train.gang.place import CHECK_EVERY
from cerebro.types import Json

#: Of an expected gain, what must be left of it for a gang to be worth its trouble.
_GAIN = 0.05

WorkersPerTrial: TypeAlias = int | Literal["host"] | None


class Mode(enum.StrEnum):
    """What the workers do at the same time."""

    #: Each a visit of another trial: trials hop.
    MOP = "mop"
    #: All of them one visit, batch by batch.
    DDP = "ddp"
    #: Some of them one visit, others another.
    HYBRID = "hybrid"
    #: What fits the number of trials.
    AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
    """What was asked for.

    >>> parse_parallel({"mode": "hybrid", "workers_per_trial": 2}).workers_per_trial
    2
    """

    mode: Mode = Mode.MOP
    #: Workers of a gang; "host": all of a machine; None: what the mode says.
    workers_per_trial: WorkersPerTrial = None
    #: Steps between two comparisons of the replicas of a gang; 0: never.
    check_every: int = CHECK_EVERY


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """Seconds of a training step, measured."""

    #: Of a batch on one worker.
    alone_s: float
    #: Of a batch on all of them, and how much of it they waited for each other.
    together_s: float
    comm_s: float
    workers: int
    #: Of a trial's state, which is sent to all of them before a visit of so many steps.
    state_bytes: int = 0
    send_s: float = 0.0
    visit_steps: int = 1
    #: Of a batch alone and of one together, which differ where each worker has one of its own.
    alone_rows: int = 1
    rows: int = 1

    @property
    def is_worth_it(self) -> bool:
        """Whether rows are trained faster together, what a visit takes in addition included."""
        shared_s = (self.together_s + self.send_s / self.visit_steps) / self.rows
        return shared_s <= (1 - _GAIN) * self.alone_s / self.alone_rows

    def describe(self) -> str:
        """For people."""
        alone, shared = "", ""
        if self.rows != self.alone_rows:
            alone, shared = f" of {self.alone_rows} rows", f"one of {self.rows} "
        speed = f" sent at {_mega(self.state_bytes / self.send_s)}/s" if self.send_s else ""
        return (
            f"a step{alone} takes {_ms(self.alone_s)} alone and {shared}{_ms(self.together_s)} "
            f"with {self.workers} workers, {_ms(self.comm_s)} of it communication "
            f"({_mega(self.state_bytes)} of state{speed})"
        )

    def to_json(self) -> dict[str, Json]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Division:
    """How the workers of a run are divided; decided once, and kept in run.json."""

    mode: Mode
    #: Workers that train a trial together, and how many such gangs there are.
    ranks: int
    gangs: int
    reason: str
    #: What a step was measured to take, where that decided.
    cost: Mapping[str, Json] = field(default_factory=dict)

    def to_json(self) -> dict[str, Json]:
        return {
            "mode": str(self.mode),
            "reason": self.reason,
            "cost": dict(self.cost),
            "gangs": self.gangs,
        }

    def describe(self) -> str:
        """For people.

        >>> divide(Parallel(mode=Mode.DDP), workers=2, trials=1).describe()
        'parallel ddp: 1 gang of 2 workers, as asked for'
        """
        workers = show_workers(self.gangs, self.ranks)
        return f"parallel {self.mode}: {workers}, {self.reason}"


def parse_parallel(
    mode: object = "mop", workers_per_trial: object = None, check_every: object = CHECK_EVERY
) -> Parallel:
    """What a user writes: a mode, or a mapping with one; UsageError where it is none."""
    if isinstance(mode, Mapping):
        known = ("mode", "workers_per_trial", "check_every")
        for key in mode:
            if key not in known:
                raise UsageError(unknown("key of parallel", str(key), known))
        if workers_per_trial is not None and "workers_per_trial" in mode:
            raise UsageError("workers_per_trial is given twice: keep one.")
        return parse_parallel(
            mode.get("mode", "hybrid" if "workers_per_trial" in mode else "auto"),
            mode.get("workers_per_trial", workers_per_trial),
            mode.get("check_every", check_every),
        )
    if not isinstance(mode, str) or mode not in list(Mode):
        raise UsageError(f"parallel must be one of {', '.join(Mode)}, but got {show(mode)}.")
    return Parallel(
        mode=Mode(mode),
        workers_per_trial=_workers_per_trial(workers_per_trial),
        check_every=_whole("check_every", check_every, 0),
    )


def divide(
    asked: Parallel,
    *,
    workers: int,
    trials: int | None,
    cost: StepCost | None = None,
) -> Division:
    """Divide workers into gangs.

    Args:
        workers: Of this machine.
        trials: How many there are to train; None: any number.
        cost: What a step takes alone and together, where that is known.

    >>> divide(Parallel(mode=Mode.AUTO), workers=4, trials=2).describe()
    'parallel hybrid: 2 gangs of 2 workers, as there are 2 trials for 4 workers'
    """
    ranks = asked.workers_per_trial
    if ranks == "host":
        ranks = workers
    if ranks is not None and ranks > workers:
        raise UsageError(
            f"workers_per_trial must be at most the number of workers, {workers}, but got {ranks}."
        )
    if asked.mode is Mode.AUTO and ranks is None:
        return _auto(workers, trials, cost)
    mode = asked.mode
    if mode is Mode.AUTO:
        mode = Mode.MOP if ranks == 1 else Mode.DDP if ranks == workers else Mode.HYBRID
    if mode is Mode.HYBRID:
        return _hybrid(ranks, workers, trials)
    whole = 1 if mode is Mode.MOP else workers
    if ranks not in (None, whole):
        told = "a worker trains" if mode is Mode.MOP else f"all {workers} workers train"
        raise UsageError(
            f"with parallel={str(mode)!r} {told} a trial, but got workers_per_trial={ranks}. Use "
            "parallel='hybrid'."
        )
    return Division(mode=mode, ranks=whole, gangs=workers // whole, reason="as asked for")


def _hybrid(ranks: int | None, workers: int, trials: int | None) -> Division:
    reason = "as asked for"
    if ranks is None:
        ranks = max(1, workers // max(1, trials or workers))
        reason = f"as there are {_count(trials, 'trial')} for {_count(workers, 'worker')}"
    gangs = workers // ranks
    idle = workers - ranks * min(gangs, trials or gangs)
    if idle:
        reason += f"; {_count(idle, 'worker')} left over"
    return Division(mode=Mode.HYBRID, ranks=ranks, gangs=gangs, reason=reason)


def _auto(workers: int, trials: int | None, cost: StepCost | None) -> Division:
    def hop(reason: str) -> Division:
        known = {} if cost is None else cost.to_json()
        return Division(mode=Mode.MOP, ranks=1, gangs=workers, reason=reason, cost=known)

    if workers == 1:
        return hop("as there is one worker")
    if trials is None or trials >= workers:
        return hop(f"as {_count(trials, 'trial')} keep {workers} workers busy")
    if trials > 1:
        mixed = _hybrid(None, workers, trials)
        return mixed if mixed.ranks > 1 else hop(mixed.reason)
    if cost is None:
        reason = "as there is one trial"
        return Division(mode=Mode.DDP, ranks=workers, gangs=1, reason=reason)
    if not cost.is_worth_it:
        told = cost.describe()
        return hop(f"as sharing its batches costs the one trial more than it saves: {told}")
    reason = f"as there is one trial, and {cost.describe()}"
    return Division(mode=Mode.DDP, ranks=workers, gangs=1, reason=reason, cost=cost.to_json())


def compare(division: Division, *, step_s: float, comm_s: float) -> str | None:
    """What a step of a run took beside what was predicted; None where it had no choice.

    >>> cost = {"together_s": 0.01}
    >>> shared = Division(mode=Mode.DDP, ranks=2, gangs=1, reason="", cost=cost)
    >>> compare(shared, step_s=0.012, comm_s=0.002)
    'a step took 12 ms, 2 ms of it communication; predicted: 10 ms'
    """
    cost = cast("Mapping[str, float]", division.cost)
    if step_s <= 0 or (division.ranks == 1 and not cost):
        return None
    told = f"a step took {_ms(step_s)}, {_ms(comm_s)} of it communication"
    if cost:
        expected = cost["together_s"] if division.ranks > 1 else cost["alone_s"]
        told += f"; predicted: {_ms(expected)}"
    # Each worker has computed its part of the rows: one would not take longer than all in turn.
    most_s = division.ranks * (step_s - comm_s)
    if most_s < step_s:
        told += f". One worker alone would have taken {_ms(most_s)} at most"
    return told


def _ms(seconds: float) -> str:
    return f"{_digits(1e3 * seconds)} ms"


def _mega(count: float) -> str:
    return f"{_digits(count / 1e6)} MB"


def _digits(number: float) -> str:
    """Three, or all of a large one: nobody reads 1.13e+03."""
    return f"{number:.3g}" if number < 999.5 else f"{number:,.0f}"


def _workers_per_trial(value: object) -> WorkersPerTrial:
    if value is None or value == "host":
        return cast(WorkersPerTrial, value)
    return _whole("workers_per_trial", value, 1)


def _whole(name: str, value: object, least: int) -> int:
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        found = value.__index__()
        if found >= least:
            return found
    known = ' or "host"' if name == "workers_per_trial" else ""
    raise UsageError(f"{name} must be a number of at least {least}{known}, but got {show(value)}.")


def _count(number: int | None, noun: str) -> str:
    if number is None:
        return f"any number of {noun}s"
    return f"{number} {noun}{'' if number == 1 else 's'}"
