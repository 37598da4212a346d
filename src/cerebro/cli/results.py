"""`cerebro results`."""

from __future__ import annotations

import csv
import enum
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from cerebro.cli.directory import open_directory
from cerebro.cli.table import format_columns, print_trials
from cerebro.results import Result, TrialResult
from cerebro.track.files import leaderboard_csv
from cerebro.track.text import clean, show, show_params
from cerebro.types import Json, Metrics


class Format(enum.StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


def show_results(path: Path, form: Format) -> None:
    """Write the leaderboard to standard output."""
    result = _open(path)
    if form is Format.TABLE:
        print_trials(result, limit=len(result.trials))
    elif form is Format.CSV:
        sys.stdout.write(leaderboard_csv(result.leaderboard().ranked))
    else:
        trials = {trial.id: trial for trial in result.trials}
        _write_json(
            [
                {"rank": row["rank"], **_describe(trials[row["trial"]])}
                for row in result.leaderboard()
            ]
        )


def show_trial(path: Path, name: str, form: Format) -> None:
    """Write one trial, epoch by epoch, to standard output."""
    result = _open(path)
    number = int(name) if name.isascii() and name.isdecimal() else name
    epochs = result.history(number)
    if form is Format.CSV:
        _write_csv(epochs or [{"epoch": ""}])
        return
    trial = next(found for found in result.trials if number in (found.id, found.number))
    if form is Format.JSON:
        _write_json(
            [{"epoch": n, "metrics": _finite(_metrics(row))} for n, row in enumerate(epochs)]
        )
        return
    print(f"{trial.id} {trial.status}  {clean(show_params(trial.params))}")
    if epochs:
        names = list(dict.fromkeys(name for epoch in epochs for name in epoch))
        # People count epochs from 1, files and programs from 0.
        told = [{**epoch, "epoch": number} for number, epoch in enumerate(epochs, start=1)]
        cells = [[show(epoch.get(name)) for name in names] for epoch in told]
        print(format_columns([[clean(name, 40) for name in names], *cells]))
    if trial.error:
        print(f"error: {clean(trial.error, 400)}")
    if trial.traceback:
        print("".join(c if c.isprintable() or c == "\n" else "?" for c in trial.traceback).rstrip())


def _open(path: Path) -> Result:
    open_directory(path)
    return Result.open(path)


def _describe(trial: TrialResult) -> dict[str, Json]:
    return {
        "trial": trial.id,
        "status": str(trial.status),
        "epoch": trial.epoch,
        "metrics": _finite(trial.metrics),
        "params": dict(trial.params),
        "error": trial.error,
    }


def _metrics(row: Mapping[str, float]) -> Metrics:
    return {name: value for name, value in row.items() if name != "epoch"}


def _finite(metrics: Metrics) -> dict[str, Json]:
    """JSON knows no NaN."""
    return {name: value if math.isfinite(value) else None for name, value in metrics.items()}


def _write_json(rows: Sequence[Mapping[str, Json]]) -> None:
    json.dump(rows, sys.stdout, indent=1)
    print()


def _write_csv(rows: Iterable[Mapping[str, Json]]) -> None:
    rows = list(rows)
    names = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, names, restval="", lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
