"""The charts of a benchmark."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cerebro.bench.cases import Case
from cerebro.bench.chart import BarChart, LineChart, Series
from cerebro.bench.curves import MOST_LINES, convergence
from cerebro.bench.measurement import PARTS, Measurement

#: More ends of epochs than this would be a grey box.
_MOST_EPOCHS = 50


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Charts by the section that they belong to."""

    split: BarChart | None
    #: Of each setting: processors, memory.
    usage: tuple[tuple[str, tuple[LineChart, ...]], ...]
    convergence: tuple[LineChart, ...]

    @property
    def lines(self) -> list[LineChart]:
        return [chart for _, charts in self.usage for chart in charts] + list(self.convergence)


def draw(cases: Sequence[Case]) -> Figures:
    """All charts that the cases have something for."""
    done = [case for case in cases if case.is_done]
    return Figures(
        split=_split(done) if done else None,
        usage=tuple((case.setting.label, _usage(case)) for case in done),
        convergence=tuple(chart for chart in convergence(done) if not chart.is_empty),
    )


def _split(cases: Sequence[Case]) -> BarChart:
    bars = [(case.setting.label, _seconds(case.shown)) for case in cases]
    return BarChart(
        name="split",
        title="Where the training time goes",
        x_label="seconds of the whole training",
        parts=PARTS,
        bars=tuple(bar for bar in bars if math.isfinite(sum(bar[1]))),
    )


def _seconds(run: Measurement) -> tuple[float, ...]:
    """By part; of several workers, which spend more than passes, the mean."""
    spent = sum(run.parts.values())
    return tuple(run.training_s * run.parts[part] / max(spent, 1e-9) for part in PARTS)


def _usage(case: Case) -> tuple[LineChart, ...]:
    run, key, label = case.shown, case.setting.key, case.setting.label
    gpus = sorted({what for use in run.nodes for what in use.series if what.startswith("gpu/")})
    busy = [what for what in gpus if what.endswith("/util")]
    charts = [
        *_over_time(f"{key}-cpu", f"CPU: {label}", "% of one core", run, ["cpu/tree"]),
        *_over_time(
            f"{key}-memory", f"Memory: {label}", "MB", run, ["memory/tree_rss"], scale=1e-6
        ),
        *_over_time(f"{key}-gpu", f"GPU: {label}", "% busy", run, busy),
    ]
    return tuple(chart for chart in charts if not chart.is_empty)


def _over_time(
    name: str,
    title: str,
    unit: str,
    run: Measurement,
    wanted: Sequence[str],
    *,
    scale: float = 1.0,
) -> Iterator[LineChart]:
    """A chart, or as many as it takes to tell the lines of all nodes apart."""
    series = [
        _since_begin(
            use.node if len(wanted) == 1 else f"{use.node} {what}", *use.series[what], scale
        )
        for use in run.nodes
        for what in wanted
        if what in use.series
    ]
    epochs = _epochs(run)
    parts = [series[start : start + MOST_LINES] for start in range(0, len(series), MOST_LINES)]
    for number, part in enumerate(parts, 1):
        is_one = len(parts) == 1
        yield LineChart(
            name=name if is_one else f"{name}-{number}",
            title=title if is_one else f"{title}, {number} of {len(parts)}",
            x_label="seconds",
            y_label=unit,
            series=tuple(part),
            marks=_marks(run, epochs[:1]),
            faint=tuple(at for at, _ in epochs[1:]),
        )


def _since_begin(
    label: str, times: Sequence[float], values: Sequence[float], scale: float
) -> Series:
    """A line from second 0 on: other nodes may be there a moment before the first."""
    kept = [(at, scale * value) for at, value in zip(times, values, strict=True) if at >= 0]
    return Series(label, tuple(at for at, _ in kept), tuple(value for _, value in kept))


def _epochs(run: Measurement) -> list[tuple[float, str]]:
    """When epochs of the best trial ended; of many some, as far from each other."""
    if not _is_timed(run):
        return []
    every = -(-len(run.curve) // _MOST_EPOCHS) or 1
    begin = run.nodes[0].window[0]
    return [
        (begin + point.seconds, f"end of epoch {point.epoch + 1}")
        for point in run.curve[every - 1 :: every]
    ]


def _marks(run: Measurement, epochs: Sequence[tuple[float, str]]) -> tuple[tuple[float, str], ...]:
    """When training began and ended, and what is named in between."""
    if not _is_timed(run):
        return ()
    first, last = run.nodes[0].window
    return (first, "first visit"), *epochs, (last, "last visit")


def _is_timed(run: Measurement) -> bool:
    return bool(run.nodes) and math.isfinite(run.nodes[0].window[1])
