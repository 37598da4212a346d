"""Which trials are trained as one: a pure function of a survey, the setting and the workers.

Seconds are predicted, so what counts is their order, not their size.
"""

from __future__ import annotations

import itertools
import math
import operator
from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import SupportsIndex, TypeAlias

from cerebro.errors import UsageError
from cerebro.train.visit import Group, Stacking, Survey
from cerebro.types import Json

#: "auto" and "probe" stack where it pays, False never, a number up to so many, pays or not.
Setting: TypeAlias = "bool | int | str"

#: Stacking must be predicted to be faster by this.
_GAIN = 0.05
#: Of the device's memory, for all stacks on it.
_MEMORY_SHARE = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupPlan:
    """What becomes of trials that could be trained as one."""

    trials: tuple[int, ...]
    #: How many are in the largest stack, and how many stacks there are; 0: they are trained alone.
    members: int = 0
    stacks: int = 0
    compiled: bool = False
    #: Why they cannot be stacked.
    obstacle: str | None = None

    def to_json(self) -> dict[str, Json]:
        return {
            "trials": len(self.trials),
            "members": self.members,
            "stacks": self.stacks,
            "compiled": self.compiled,
            "obstacle": self.obstacle,
        }

    def split(self) -> list[tuple[int, ...]]:
        """The trials of each stack, spread evenly, in order.

        >>> GroupPlan(trials=(1, 2, 3, 5, 8), members=3, stacks=2).split()
        [(1, 2, 3), (5, 8)]
        """
        trials, count = sorted(self.trials), self.stacks
        sizes = [(len(trials) + place) // count for place in reversed(range(count))]
        ends = list(itertools.accumulate(sizes))
        return [tuple(trials[end - size : end]) for size, end in zip(sizes, ends, strict=True)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Composition:
    """All groups of a survey, and what becomes of them."""

    setting: Setting
    groups: tuple[GroupPlan, ...]

    @property
    def trials(self) -> list[int]:
        return sorted(trial for group in self.groups for trial in group.trials)

    @property
    def stacks(self) -> list[tuple[tuple[int, ...], Stacking]]:
        """The trials of each stack and how they are trained, by their first trial."""
        found = [
            (trials, Stacking(compiled=group.compiled))
            for group in self.groups
            for trials in group.split()
        ]
        return sorted(found, key=lambda pair: pair[0])

    def to_json(self) -> dict[str, Json]:
        return {"setting": self.setting, "groups": [group.to_json() for group in self.groups]}

    def record(self, units: int, shards: int) -> dict[str, Json]:
        """The journal record; `units` are there before these."""
        stacked = {trial for trials, _ in self.stacks for trial in trials}
        firsts = {trials[0] for trials, _ in self.stacks}
        # Units start at one shard after another, in order of their first trials.
        order = [trial for trial in self.trials if trial in firsts or trial not in stacked]
        starts = {trial: (units + place) % shards for place, trial in enumerate(order)}
        return {
            "type": "stacks",
            "trials": list(self.trials),
            "stacks": [
                {"trials": list(trials), "start": starts[trials[0]], "stack": stacking.to_json()}
                for trials, stacking in self.stacks
            ],
        }

    def describe(self) -> str:
        """For people.

        >>> group = GroupPlan(trials=tuple(range(1024)), members=256, stacks=4)
        >>> Composition(setting="auto", groups=(group,)).describe()
        '1024 trials in 4 stacks of 256'
        """
        return describe_stacks([len(trials) for trials, _ in self.stacks], len(self.trials))

    def obstacles(self) -> dict[str, int]:
        """Why trials are not stacked, and how many."""
        found: dict[str, int] = {}
        for group in self.groups:
            if group.obstacle is not None:
                found[group.obstacle] = found.get(group.obstacle, 0) + len(group.trials)
        return found


def check_setting(value: object) -> Setting:
    """Give the setting back if it is one; else UsageError.

    >>> check_setting(4)
    4
    """
    if value is False or (value in ("auto", "probe") and isinstance(value, str)):
        return value
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        count = operator.index(value)
        if count >= 1:
            return count
    raise UsageError(
        f"stack must be auto, probe, false or a number of at least 1, but got {value!r:.80}."
    )


def describe_stacks(sizes: list[int], trials: int) -> str:
    """For people: how trials are stacked.

    >>> describe_stacks([3, 2], 8)
    '8 trials: 5 in 2 stacks of 2 to 3, 3 alone'
    """
    if not sizes:
        return f"{trials} trials, none in a stack"
    count, least, most = len(sizes), min(sizes), max(sizes)
    size = str(most) if least == most else f"{least} to {most}"
    told = f"{count} stack{'s' if count > 1 else ''} of {size}"
    alone = trials - sum(sizes)
    return (
        f"{trials} trials: {sum(sizes)} in {told}, {alone} alone"
        if alone
        else f"{trials} trials in {told}"
    )


def compose(
    survey: Survey,
    setting: Setting,
    *,
    workers: int,
    steps: Mapping[int, int],
    devices: int = 1,
) -> Composition:
    """Put trials into stacks.

    Args:
        workers: How many visits run at once.
        steps: Training steps that each trial takes in the whole run.
        devices: Over how many the workers are spread; each has the memory of the survey.
    """
    # Every worker that shares a device may have a stack on it at the same time.
    memory_bytes = survey.memory_bytes // -(-workers // devices)
    work = [
        _alone_s(group) * sum(steps[trial] for trial in group.trials) for group in survey.groups
    ]
    total = sum(work)
    plans = []
    for group, part in zip(survey.groups, work, strict=True):
        # Other groups keep their share of the workers busy meanwhile.
        share = workers * part / total if part > 0 else float(workers)
        plans.append(_plan(group, setting, share, steps[group.trials[0]], memory_bytes))
    return Composition(setting=setting, groups=tuple(plans))


def _plan(
    group: Group, setting: Setting, workers: float, steps: int, memory_bytes: int
) -> GroupPlan:
    if group.obstacle is not None or setting is False:
        return GroupPlan(trials=group.trials, obstacle=group.obstacle)
    one_bytes = 2 * group.state_bytes + group.step_bytes
    most = len(group.trials)
    if one_bytes:
        most = min(most, int(_MEMORY_SHARE * memory_bytes / one_bytes))
    if most < 1:
        obstacle = "one of them fills the memory that stacks may use"
        return GroupPlan(trials=group.trials, obstacle=obstacle)
    is_forced = isinstance(setting, int)
    if is_forced:
        most = min(most, int(setting))
    choices = [
        (_duration(group, count, workers, steps, is_compiled), count, is_compiled)
        for count in _counts(len(group.trials), most, only_fewest=is_forced)
        for is_compiled in ([False, True] if group.compiled_step_s else [False])
    ]
    # Among equals the fewest stacks.
    best_s, count, is_compiled = min(choices)
    alone_s = _alone_s(group) * steps * max(1.0, len(group.trials) / workers)
    if not is_forced and best_s > (1 - _GAIN) * alone_s:
        return GroupPlan(trials=group.trials)
    members = -(-len(group.trials) // count)
    return GroupPlan(trials=group.trials, members=members, stacks=count, compiled=is_compiled)


def _counts(trials: int, most: int, *, only_fewest: bool) -> Iterator[int]:
    """Numbers of stacks to choose from: the fewest for each size of the largest of them."""
    fewest = -(-trials // most)
    sizes = range(-(-trials // fewest), 0, -1)
    yield from dict.fromkeys(-(-trials // size) for size in ([sizes[0]] if only_fewest else sizes))


def _duration(group: Group, count: int, workers: float, steps: int, is_compiled: bool) -> float:
    """Seconds from the first step to the last: hopping spreads stacks evenly over workers."""
    members, rest = -(-len(group.trials) // count), len(group.trials) % count
    table = group.compiled_step_s if is_compiled else group.step_s
    # Stacks of another size are compiled on their own.
    begin_s = group.compile_s * (2 if rest else 1) if is_compiled else 0.0
    return begin_s + steps * step_s(table, members) * max(1.0, count / workers)


def _alone_s(group: Group) -> float:
    return step_s(group.step_s, 0) if group.step_s else 0.0


def step_s(table: Mapping[int, float], members: int) -> float:
    """Seconds of a step with so many members; 0 for the plain loop. Between entries on a line.

    >>> step_s({0: 2.0, 1: 3.0, 5: 7.0}, 3), step_s({1: 3.0, 5: 7.0}, 9)
    (5.0, 11.0)
    """
    if members in table:
        return table[members]
    known = sorted(size for size in table if size > 0)
    if not known:
        return math.inf if members else 0.0
    if members == 0 or len(known) == 1:
        return table[known[0]] * max(1, members) / known[0]
    place = min(max(1, bisect_left(known, members)), len(known) - 1)
    low, high = known[place - 1], known[place]
    return table[low] + (members - low) * (table[high] - table[low]) / (high - low)
