"""Tables of a benchmark: rows of text for people, and CSV files with everything that is drawn."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Iterable, Sequence
from pathlib import Path

from cerebro.bench.cases import Case
from cerebro.bench.measurement import PARTS, Measurement
from cerebro.track.writing import replace

_AGAINST = "time against the first"
_TIMES = (
    "setting",
    "threads",
    "completion s",
    "training s",
    _AGAINST,
    "rows/s",
    "communication",
    "CPU of node 0",
    "memory of node 0",
    "best",
)


def times_table(cases: Sequence[Case]) -> list[list[str]]:
    """A header and a row a case."""
    place = _TIMES.index(_AGAINST)
    return [[*row[:place], *row[place + 1 :]] for row in comparison_table(cases)]


def comparison_table(cases: Sequence[Case]) -> list[list[str]]:
    """The same of cases with one batch, with times against the first that succeeded."""
    base = next((case.training_s for case in cases if case.is_done), math.nan)
    return [list(_TIMES), *(_time_row(case, base) for case in cases)]


def _time_row(case: Case, base: float) -> list[str]:
    if not case.is_done:
        return [case.setting.label, "", "failed", *[""] * (len(_TIMES) - 3)]
    spread = "" if math.isnan(case.spread) else f" ±{50 * case.spread:.0f} %"
    return [
        case.setting.label,
        str(case.shown.threads),
        _number(case.completion_s),
        _number(case.training_s) + spread,
        f"{case.training_s / base:.2f}x",
        _number(case.samples_per_s),
        f"{100 * case.communication:.0f} %",
        _percent(case.cpu()),
        _megabytes(case.memory()),
        _number(case.best),
    ]


def split_table(cases: Sequence[Case]) -> list[list[str]]:
    """Milliseconds of each part for a training step, and the step rate."""
    rows = [["setting", *(f"{part} ms" for part in PARTS), "sum ms", "steps"]]
    for case in cases:
        if case.is_done:
            spent = case.step_ms
            times = [*(spent[part] for part in PARTS), sum(spent.values())]
            shown = [f"{ms:.3g}" if math.isfinite(ms) else "-" for ms in times]
            steps = case.shown.steps
            rows.append([case.setting.label, *shown, "-" if steps is None else str(steps)])
    return rows


def nodes_table(cases: Sequence[Case]) -> list[list[str]]:
    """What each node's processes took."""
    rows = [["setting", "node", "CPU mean", "CPU peak", "memory peak", "shared once", "sent"]]
    for case in cases:
        if not case.is_done:
            continue
        for use in case.shown.nodes:
            rows.append(
                [
                    case.setting.label,
                    use.node,
                    _percent(use.mean("cpu/tree")),
                    _percent(use.peak("cpu/tree")),
                    _megabytes(use.peak("memory/tree_rss")),
                    _megabytes(use.peak("memory/tree_pss")),
                    _megabytes(use.gained("/out")),
                ]
            )
    return rows


def write_tables(folder: Path, measurements: Sequence[Measurement]) -> list[Path]:
    """Everything that is drawn, as CSV: times, split, resources, convergence."""
    folder.mkdir(parents=True, exist_ok=True)
    done = [m for m in measurements if m.is_done]
    tables: dict[str, list[list[object]]] = {
        "times": [_TIMES_HEADER, *map(_times_row, measurements)],
        "split": [["setting", *PARTS], *([m.setting.key, *m.parts.values()] for m in done)],
        "resources": [["setting", "node", "what", "seconds", "value"], *_resources(measurements)],
        "convergence": [_CURVE_HEADER, *_curves(done)],
    }
    written = []
    for name, rows in tables.items():
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        path = folder / f"{name}.csv"
        replace(path, text.getvalue())
        written.append(path)
    return written


_TIMES_HEADER: list[object] = [
    *("setting", "nodes", "procs", "threads", "batch", "rule", "global_batch"),
    *("checkpoint", "repeat", "status", "completion_s", "training_s", "startup_s"),
    *("samples_per_s", "steps", "communication", "metric", "best", "error"),
]
_CURVE_HEADER: list[object] = ["setting", "metric", "epoch", "seconds", "samples", "value"]


def _times_row(m: Measurement) -> list[object]:
    s = m.setting
    status, threads = ("done", m.threads) if m.is_done else ("failed", "")
    saved = "" if s.checkpoint is None else int(s.checkpoint)
    return [
        *(s.key, s.nodes, s.procs, threads, s.batch, s.rule, s.global_batch),
        *(saved, s.repeat, status, m.completion_s, m.training_s, m.startup_s),
        *(m.samples_per_s, m.steps, m.communication, m.metric, m.best, m.error),
    ]


def _resources(measurements: Iterable[Measurement]) -> Iterable[list[object]]:
    for m in measurements:
        for use in m.nodes:
            for what, (times, values) in use.series.items():
                for second, value in zip(times, values, strict=True):
                    yield [m.setting.key, use.node, what, round(second, 3), value]


def _curves(measurements: Iterable[Measurement]) -> Iterable[list[object]]:
    for m in measurements:
        for p in m.curve:
            yield [m.setting.key, m.metric, p.epoch, p.seconds, p.samples, p.value]


def _number(value: float) -> str:
    if not math.isfinite(value):
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _percent(value: float) -> str:
    return f"{value:.0f} %" if math.isfinite(value) else "-"


def _megabytes(value: float) -> str:
    return f"{value / 1e6:.0f} MB" if math.isfinite(value) else "-"
