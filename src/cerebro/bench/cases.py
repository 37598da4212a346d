"""Settings with all their repeats: medians, and how far the repeats are apart."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

from cerebro.bench.measurement import PARTS, Measurement
from cerebro.bench.sweep import Setting


@dataclass(frozen=True, slots=True)
class Case:
    """A setting and its measurements; those that failed are none."""

    setting: Setting
    runs: tuple[Measurement, ...]
    failures: tuple[Measurement, ...] = ()

    @property
    def is_done(self) -> bool:
        return bool(self.runs)

    @property
    def shown(self) -> Measurement:
        """The run whose curves are shown: that with the median completion time."""
        by_time = sorted(self.runs, key=lambda run: run.completion_s)
        return by_time[(len(by_time) - 1) // 2]

    def median(self, value: Callable[[Measurement], float]) -> float:
        found = [value(run) for run in self.runs]
        return statistics.median(found) if found else math.nan

    @property
    def completion_s(self) -> float:
        return self.median(lambda run: run.completion_s)

    @property
    def training_s(self) -> float:
        return self.median(lambda run: run.training_s)

    @property
    def spread(self) -> float:
        """Slowest less fastest repeat, as a part of the median."""
        times = [run.training_s for run in self.runs]
        return (max(times) - min(times)) / self.training_s if len(times) > 1 else math.nan

    @property
    def samples_per_s(self) -> float:
        return self.median(lambda run: run.samples_per_s)

    @property
    def communication(self) -> float:
        return self.median(lambda run: run.communication)

    @property
    def step_ms(self) -> dict[str, float]:
        return {part: self.median(lambda run, part=part: run.step_ms[part]) for part in PARTS}  # type: ignore[misc]

    @property
    def best(self) -> float:
        return self.median(lambda run: run.best)

    def cpu(self, node: int = 0) -> float:
        """Mean use of the processors by a node's processes, in percent of one core."""
        return self.median(lambda run: _of_node(run, node, lambda use: use.mean("cpu/tree")))

    def memory(self, node: int = 0) -> float:
        """The most memory that a node's processes had, in bytes."""
        return self.median(lambda run: _of_node(run, node, lambda use: use.peak("memory/tree_rss")))

    def foreign(self) -> float:
        """Mean use of the processors by others, in percent of one core."""
        return self.median(_foreign)

    def sent_bytes(self) -> float:
        """What all nodes' interfaces have sent."""
        return self.median(lambda run: sum(use.gained("/out") for use in run.nodes))


def _foreign(run: Measurement) -> float:
    ours = sum(use.mean("cpu/tree") for use in run.nodes)
    return max(0.0, run.nodes[0].mean("cpu/system") - ours) if run.nodes else math.nan


def _of_node(run: Measurement, node: int, value: Callable[..., float]) -> float:
    return value(run.nodes[node]) if node < len(run.nodes) else math.nan


def gather(measurements: Iterable[Measurement]) -> list[Case]:
    """Measurements by setting, in the order in which settings come first."""
    found: dict[Setting, list[Measurement]] = {}
    for measurement in measurements:
        found.setdefault(measurement.setting.case, []).append(measurement)
    return [
        Case(
            setting,
            tuple(run for run in runs if run.is_done),
            tuple(run for run in runs if not run.is_done),
        )
        for setting, runs in found.items()
    ]


def families(cases: Sequence[Case]) -> list[list[Case]]:
    """Cases that differ in nothing but nodes and processes: the base first, then each rule.

    A case of one process stands for both rules: it is the base of both.
    """
    groups: dict[tuple[object, ...], list[Case]] = {}
    for case in cases:
        s = case.setting
        rules = [str(s.rule)] if s.ranks > 1 else ["global", "rank"]
        for rule in rules:
            groups.setdefault((s.batch, s.changes, s.checkpoint, rule), []).append(case)
    return [
        sorted(group, key=lambda case: (case.setting.ranks, case.setting.nodes))
        for group in groups.values()
        if len(group) > 1
    ]


def saved_pairs(cases: Sequence[Case]) -> list[tuple[Case, Case]]:
    """Cases that differ in saving states alone: without, with."""
    without = {
        replace(case.setting, checkpoint=None): case
        for case in cases
        if case.setting.checkpoint is False and case.is_done
    }
    return [
        (without[bare], case)
        for case in cases
        if case.setting.checkpoint and case.is_done
        if (bare := replace(case.setting, checkpoint=None)) in without
    ]


def without_twins(cases: Sequence[Case]) -> list[Case]:
    """All but those that save states, where the same was run without."""
    twins = {saved.setting for _, saved in saved_pairs(cases)}
    return [case for case in cases if case.setting not in twins]
