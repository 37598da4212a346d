"""`cerebro results`."""

from __future__ import annotations

import csv
import enum
import json
import math
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from cerebro.cli.directory import open_directory
from cerebro.cli.table import format_columns, print_ranking
from cerebro.results import Result, TrialResult
from cerebro.track.files import leaderboard_csv
from cerebro.track.ranking import leaderboard
from cerebro.track.standings import show_lineage
from cerebro.track.text import clean, show, show_params
from cerebro.types import Json, Metrics, TrialStatus


class Format(enum.StrEnum):
    """How results are written."""

    TABLE = "table"
    JSON = "json"
    CSV = "csv"


#: What a row of the leaderboard may have beside what every trial has.
_EXTRAS = ("config", "repeat", "mean", "std", "feasible", "pareto", "parent", "parent_epochs")


def show_results(path: str, form: Format, *, is_pareto: bool = False) -> None:
    """Write the leaderboard, or the Pareto front alone, to standard output."""
    result = _open(path)
    ranking = result.leaderboard().ranking
    if is_pareto:
        front = {trial.number for trial in result.pareto()}
        configs = [config for config in ranking.configs if config.rows[0].trial in front]
        ranking = replace(ranking, configs=configs)
    if form is Format.TABLE:
        print_ranking(ranking, limit=len(ranking.configs))
        if result.ending is not None:
            print(result.ending)
    elif form is Format.CSV:
        sys.stdout.write(leaderboard_csv(ranking))
    else:
        trials = {trial.id: trial for trial in result.trials}
        _write_json(
            [
                {
                    "rank": row["rank"],
                    **_describe(trials[str(row["trial"])]),
                    **{name: row[name] for name in _EXTRAS if name in row},
                }
                for row in leaderboard(ranking)
            ]
        )


def show_trial(path: str, name: str, form: Format) -> None:
    """Write one trial, epoch by epoch, to standard output."""
    result = _open(path)
    number = int(name) if name.isascii() and name.isdecimal() else name
    number = result.best.number if number == "best" else number
    epochs = result.history(number)
    if form is Format.CSV:
        _write_csv(epochs or [{"epoch": ""}])
        return
    trial = next(found for found in result.trials if number in (found.id, found.number))
    if form is Format.JSON:
        _write_json([{"epoch": row["epoch"], "metrics": _finite(_metrics(row))} for row in epochs])
        return
    print(f"{trial.id} {trial.status}  {clean(show_params(trial.params))}")
    for line in _origin(result, trial):
        print(line)
    if epochs:
        names = list(dict.fromkeys(name for epoch in epochs for name in epoch))
        # People count epochs from 1, files and programs from 0.
        told = [{**epoch, "epoch": epoch["epoch"] + 1} for epoch in epochs]
        cells = [[show(epoch.get(name)) for name in names] for epoch in told]
        print(format_columns([[clean(name, 40) for name in names], *cells]))
    if trial.error:
        # A stopper, a goal or a person ended it: nothing is wrong.
        label = "stopped" if trial.status == TrialStatus.STOPPED else "error"
        print(f"{label}: {clean(trial.error, 400)}")
    if trial.traceback:
        print("".join(c if c.isprintable() or c == "\n" else "?" for c in trial.traceback).rstrip())


def _origin(result: Result, trial: TrialResult) -> list[str]:
    """Which repeat of what a trial is, and what it is a copy of."""
    lines: list[str] = []
    spec = result.document.spec
    seeds, folds = int(str(spec["seeds"])), int(str(spec["folds"]))
    if max(seeds, folds) > 1:
        config = next(each for each in result.configs if trial in each.trials)
        if len(config.trials) > 1:
            what = f"fold {trial.repeat + 1} of {folds} held out"
            if not folds:
                what = f"repeat {trial.repeat + 1} of {seeds}"
            lines.append(f"{what}, of the configuration of {config.id}")
    if trial.parent is not None:
        parent = next(each for each in result.trials if each.id == trial.parent)
        steps = int(str(spec["train_shards"]))
        visits = trial.parent_visits % steps
        lines.append(
            show_lineage(parent.number, trial.parent_epochs, visits, parent.params, trial.params)
        )
    return lines


def _open(path: str) -> Result:
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
