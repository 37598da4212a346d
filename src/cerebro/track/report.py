"""report.html: the whole run on one self-contained page.

The page is ``report.html`` beside this module; all that is filled in is one JSON block, which the
page shows as text only. Curves stand there as base64 of little-endian float32, NaN for a gap: less
than half of what numbers take as text, and read only when they are drawn.
"""

from __future__ import annotations

import base64
import json
import math
from array import array
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np

from cerebro.track.board import Board
from cerebro.track.efficiency import Summary
from cerebro.track.history import History, Timeline
from cerebro.track.plain import efficiency_line
from cerebro.track.ranking import Config, TrialRow, has_rank
from cerebro.track.standings import show_config_status, show_lineage, show_value
from cerebro.track.text import show_workers
from cerebro.types import Json, trial_id

#: The page stays quick, and below some 3 MB, up to here. Of more visits it shows the last ones, of
#: more values the curves of the best trials, and says so.
VISITS_SHOWN = 20_000
VALUES_SHOWN = 420_000
_PLACE = "__DATA__"


def report_data(board: Board, history: History, summary: Summary | None) -> dict[str, Json]:
    """What the page shows, as JSON: trials best first, curves by metric, visits as columns.

    >>> report_data(Board(), History(), None)["trials"]
    []
    """
    run, ranking = board.run, board.ranked()
    names = dict.fromkeys(
        name
        for row in ranking.rows
        for name in history.curves.get(row.trial, ())
        if name != run.metric
    )
    objectives = [(run.metric, run.mode), *run.objectives] if run.objectives else []
    room, curves_left_out = VALUES_SHOWN, 0
    trials: list[Json] = []
    for config in ranking.configs:
        for row in config.rows:
            curves = history.curves.get(row.trial, {})
            room -= sum(map(len, curves.values()))
            curves_left_out += room < 0 and bool(curves)
            trial = _trial(row, curves if room >= 0 else {})
            trials.append({**trial, **_standing(row, config, board)})
    return {
        "run": run.run,
        "workers": show_workers(run.workers, run.ranks),
        "epochs": run.epochs,
        "train_shards": run.train_shards,
        "val_shards": run.val_shards,
        "metric": run.metric,
        "mode": str(run.mode),
        "objectives": [[name, str(mode)] for name, mode in objectives],
        "repeats": run.repeats,
        "metrics": [run.metric, *names],
        "trials": trials,
        "curves_left_out": curves_left_out,
        "visits": _visits(history.timeline),
        "resumed": run.resumed,
        "summary": _summary(summary, run.resumed),
    }


def write_report(path: Path, board: Board, history: History, summary: Summary | None) -> None:
    """Write the page for the run the records told of; ``summary`` is None for one cut short."""
    shown = report_data(board, history, summary)
    data = json.dumps(shown, ensure_ascii=False, separators=(",", ":"))
    page = Path(__file__).with_name("report.html").read_text(encoding="utf-8")
    # Without "<" nothing in the data can end the script element or open a comment in it.
    page = page.replace(_PLACE, data.replace("<", "\\u003c"), 1)
    path.write_text(page, encoding="utf-8", errors="backslashreplace")


def _trial(row: TrialRow, curves: dict[str, array[float]]) -> dict[str, Json]:
    return {
        "id": trial_id(row.trial),
        "number": row.trial,
        "params": {name: _value(value) for name, value in row.params.items()},
        "failed": row.status.is_failure,
        "epochs": row.epochs,
        "ranked": has_rank(row),
        "best": _number(row.metric),
        "best_epoch": row.best_epoch,
        "curves": {name: _packed(values) for name, values in curves.items()},
    }


def _standing(row: TrialRow, config: Config, board: Board) -> dict[str, Json]:
    """What a trial has beside its own values, as far as the run has such things."""
    run = board.run
    # In its own right: what its repeats came to stands with the configuration.
    alone = replace(config, rows=(row,))
    found: dict[str, Json] = {
        "rank": config.rank if has_rank(row) else None,
        "status": show_config_status(alone, run.criteria),
    }
    if run.repeats > 1:
        found |= {"config": trial_id(config.rows[0].trial), "mean": show_value(config)}
        found["repeat"] = row.repeat + 1
    if run.objectives:
        names = [run.metric, *(name for name, _ in run.objectives)]
        found["values"] = [_number(row.metrics.get(name)) for name in names]
        found |= {"pareto": config.is_on_front, "feasible": config.is_feasible}
    if row.parent is not None:
        parent = board.rows.get(row.parent)
        old = row.params if parent is None else parent.params
        found["origin"] = show_lineage(row.parent, row.parent_epochs, 0, old, row.params)
    return found


def _visits(timeline: Timeline) -> dict[str, Json]:
    first = max(0, len(timeline) - VISITS_SHOWN)
    return {
        "left_out": timeline.left_out + first,
        "stacks": [list(trials) for trials in timeline.stacks],
        "stack": list(timeline.stack[first:]),
        "epoch": list(timeline.epoch[first:]),
        "shard": list(timeline.shard[first:]),
        "worker": list(timeline.worker[first:]),
        "eval": list(timeline.is_eval[first:]),
        "start": [round(t, 4) for t in timeline.start_s[first:]],
        "end": [round(t, 4) for t in timeline.end_s[first:]],
    }


def _summary(summary: Summary | None, resumed: bool) -> dict[str, Json] | None:
    if summary is None:
        return None
    line = efficiency_line(summary, resumed)
    return {**asdict(summary), "line": line, "parts": dict(summary.parts())}


def _packed(values: array[float]) -> str:
    with np.errstate(over="ignore"):
        numbers = np.array(values, dtype="<f4")
    numbers[~np.isfinite(numbers)] = np.nan
    return base64.b64encode(numbers.tobytes()).decode("ascii")


def _number(value: float | None) -> float | None:
    # Six digits are more than a screen shows, and JSON has no NaN.
    return None if value is None or not math.isfinite(value) else float(f"{value:.6g}")


def _value(value: Json) -> Json:
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
