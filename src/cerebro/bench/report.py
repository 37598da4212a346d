"""The report of a benchmark: one page that needs nothing else, and the same as PNG and CSV."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from cerebro.bench.cases import Case, families, gather, saved_pairs
from cerebro.bench.chart import Frame, LineChart
from cerebro.bench.figures import Figures, draw
from cerebro.bench.measurement import Measurement
from cerebro.bench.nodes import are_simulated
from cerebro.bench.png import bar_png, line_png
from cerebro.bench.svg import bar_svg, line_svg
from cerebro.bench.sweep import Rule
from cerebro.bench.tables import (
    comparison_table,
    nodes_table,
    split_table,
    times_table,
    write_tables,
)
from cerebro.bench.words import sentences
from cerebro.errors import MissingDependencyError
from cerebro.track.text import show_count
from cerebro.track.writing import replace

_PLACE = "<!-- REPORT -->"
#: Two beside each other.
_SMALL = Frame(width=510.0, height=250.0)


def write_report(
    out: Path, measurements: Sequence[Measurement], about: Mapping[str, Any]
) -> list[str]:
    """Write `report.html`, `csv/` and `png/` into a directory; what could not be written.

    Args:
        about: What `bench.json` says.
    """
    cases = gather(measurements)
    figures = draw(cases)
    write_tables(out / "csv", measurements)
    problems = _write_pictures(out / "png", figures)
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    body = "\n".join(_body(cases, figures, about, out))
    replace(out / "report.html", page.replace(_PLACE, body, 1))
    return problems


def _write_pictures(folder: Path, figures: Figures) -> list[str]:
    folder.mkdir(parents=True, exist_ok=True)
    try:
        for chart in figures.lines:
            line_png(chart, folder / f"{chart.name}.png")
        if figures.split is not None:
            bar_png(figures.split, folder / f"{figures.split.name}.png")
    except MissingDependencyError as error:
        return [str(error)]
    return []


def _body(
    cases: Sequence[Case], figures: Figures, about: Mapping[str, Any], out: Path
) -> list[str]:
    machine = about["machine"]
    is_simulated = are_simulated(about["hosts"])
    told = sentences(cases, cores=int(machine["cores"]), is_simulated=is_simulated)
    return [
        _header(about, is_simulated and any(case.setting.nodes > 1 for case in cases)),
        _section("In words", _list(told or ["Nothing was measured."])),
        _section("Completion times", _table(times_table(cases)), _TIMES_NOTE),
        *_comparisons(cases),
        *([] if figures.split is None else [_split(cases, figures)]),
        *_checkpoints(cases),
        _section(
            "Convergence",
            _CURVES_NOTE,
            _charts(figures.convergence),
        ),
        _section(
            "Processors and memory, by node",
            _table(nodes_table(cases)),
            _USAGE_NOTE,
            _usage(figures),
        ),
        _section("Files", _FILES, _tensorboard(out)),
    ]


def _header(about: Mapping[str, Any], is_simulated: bool) -> str:
    machine = about["machine"]
    name = Path(str(about["file"])).name
    when = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d %H:%M UTC")
    where = (
        f"{', '.join(about['hosts'])}"
        if about["hosts"]
        else f"{machine['host']}: {show_count(machine['cores'], 'core')}, {machine['processor']}, "
        f"{machine['memory_bytes'] / 2**30:.1f} GiB, {machine['system']}"
    )
    changes = f" with {' '.join(about['overrides'])}" if about["overrides"] else ""
    note = (
        '<p class="note"><b>Simulated nodes.</b> All nodes of a setting were processes of this one '
        f"machine, with {show_count(machine['cores'], 'core')}, one memory and one loopback "
        "network for all of them. Times of several nodes tell what communication costs, not what "
        "more machines would bring.</p>"
        if is_simulated
        else ""
    )
    return (
        f"<header><h1>Benchmark of {escape(name)}</h1>"
        f'<p class="muted">{escape(str(about["file"]) + changes)}<br>{escape(where)}<br>'
        f"Cerebro {escape(str(about['cerebro']))}, Python {escape(str(machine['python']))}, {when}"
        f"</p>{note}</header>"
    )


def _comparisons(cases: Sequence[Case]) -> list[str]:
    """A table for each batch size and rule: nodes and processes against one process."""
    tables: dict[Rule, list[str]] = {Rule.GLOBAL: [], Rule.RANK: []}
    for family in families(cases):
        rule = family[-1].setting.rule
        tables[rule].append(_table(comparison_table(family)))
    notes = {
        Rule.GLOBAL: "The fair comparison: every setting makes the same steps on the same rows, "
        "and more processes share the work of a step.",
        Rule.RANK: "Every process has a batch of that size, so a step is of more rows with more "
        "processes, an epoch has fewer steps, and the result may differ.",
    }
    titles = {
        Rule.GLOBAL: "Nodes and processes at a fixed batch in all",
        Rule.RANK: "Nodes and processes at a fixed batch for each process",
    }
    return [
        _section(titles[rule], *found, f'<p class="muted">{notes[rule]}</p>')
        for rule, found in tables.items()
        if found
    ]


def _split(cases: Sequence[Case], figures: Figures) -> str:
    chart = "" if figures.split is None else bar_svg(figures.split)
    return _section("Where the training time goes", chart, _table(split_table(cases)), _SPLIT_NOTE)


def _checkpoints(cases: Sequence[Case]) -> list[str]:
    pairs = saved_pairs(cases)
    if not pairs:
        return []
    rows = [
        [
            "setting",
            *("completion s, not saved", "completion s, saved"),
            *("training s, not saved", "training s, saved", "difference in training"),
        ]
    ]
    for without, saved in pairs:
        change = saved.training_s / without.training_s - 1
        label = without.setting.label.removesuffix(", not saved")
        both = without, saved
        times = [*(case.completion_s for case in both), *(case.training_s for case in both)]
        rows.append([label, *(f"{s:.4g}" for s in times), f"{100 * change:+.1f} %"])
    return [_section("The effect of saving states", _table(rows))]


def _usage(figures: Figures) -> str:
    parts = []
    for label, charts in figures.usage:
        parts.append(f'<div class="setting"><h3>{escape(label)}</h3>{_charts(charts)}</div>')
    return "".join(parts)


def _section(title: str, *parts: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{''.join(parts)}</section>"


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _charts(charts: Sequence[LineChart]) -> str:
    figures = "".join(
        f"<figure><figcaption>{escape(chart.title)}</figcaption>{line_svg(chart, _SMALL)}</figure>"
        for chart in charts
    )
    return f'<div class="grid">{figures}</div>'


def _table(rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    body = "".join(
        f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows[1:]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="scroll">{table}</div>'


_VISIT = "a visit is one pass over one shard of the data, for training or validation"
_TIMES_NOTE = (
    '<p class="muted"><b>threads</b>: of each process (<code>device.intra_threads</code> of a '
    "recipe, <code>threads_per_worker</code> of an experiment file). <b>completion</b>: from the "
    "start of node 0’s process to its end; <b>training</b>: from the first visit to the last, "
    f"without starting processes and importing libraries ({_VISIT}); with repeats both are "
    "medians, and ± is half of what lies between the fastest and the slowest. "
    "<b>communication</b>: the part of a training step spent waiting for other processes. "
    "<b>CPU</b>: mean while it trained (of all its time, where that was too short for a few "
    "samples), 100 % is one core. <b>best</b>: of the metric.</p>"
)
_SPLIT_NOTE = (
    '<p class="muted"><b>data</b>: opening and ordering rows, and waiting for batches: gathered, '
    "moved, decoded and augmented; <b>compute</b>: forward, backward and update; "
    "<b>communication</b>: waiting for other processes; <b>hop</b>: building the model and handing "
    "over its state; <b>validation</b>: all of it; <b>other</b>: waiting for a checkpoint or for "
    "work. The picture has seconds of a whole training; the table divides all of a run by its "
    "training steps, which have more rows where batches are larger.</p>"
)
_CURVES_NOTE = (
    '<p class="muted">One point an epoch, of the best trial of each setting. At the same batch in '
    "all every setting makes the same steps on the same rows: the first epochs lie on each other, "
    "and later ones as closely as the training is stable, since sums are made in another order "
    "(batch norm, dropout and augmentation, where a model has them, also go by process). "
    "Settings that differ in saving states alone are drawn once.</p>"
)
_USAGE_NOTE = (
    '<p class="muted">All processes of a node together. Upright lines: where the first visit '
    "begins, where epochs of the best trial end, with their validation (of many epochs some), and "
    f"where the last visit ends; {_VISIT}. <b>memory</b> counts pages that several processes share "
    "once for each; <b>shared once</b> does not. <b>sent</b>: by all interfaces of the node, the "
    "loopback among them; simulated nodes have the same interfaces.</p>"
)
_FILES = (
    "<p>Everything drawn here is in <code>csv/</code> (<a href='csv/times.csv'>times</a>, "
    "<a href='csv/split.csv'>split</a>, <a href='csv/resources.csv'>resources</a>, "
    "<a href='csv/convergence.csv'>convergence</a>), each chart as a picture in <code>png/</code>, "
    "each run with its own report in <code>runs/</code>, and what the nodes printed in "
    "<code>settings/</code>.</p>"
)


def _tensorboard(out: Path) -> str:
    command = f"tensorboard --logdir {out / 'runs'}"
    return f"<p><code>{escape(command)}</code> shows scalars of all runs and the model’s graph.</p>"
