"""`cerebro test`, `cerebro predict` and `cerebro export`."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path

from cerebro.cli.directory import open_directory
from cerebro.config.resolve import task_reference
from cerebro.experiment import Experiment
from cerebro.results import Result
from cerebro.train.runner import import_task
from cerebro.train.score.parts import number_to_json


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What is asked of models on the command line."""

    run: str
    models: tuple[str, ...]
    split: str
    data: str | None
    batch_size: int | None
    workers: int | None
    device: str
    which: str
    task: str | None = None
    output: Path | None = None


def test(ask: Question, *, is_json: bool) -> None:
    """Print the metrics of models over a split."""
    experiment, task = _open(ask)
    result = experiment.run_test(
        task,
        list(ask.models),
        ask.batch_size,
        split=ask.split,
        which=ask.which,
        device=ask.device,
    )
    if not is_json:
        print(result)
        return
    rows = [
        {"model": model, "metrics": {n: number_to_json(v) for n, v in metrics.items()}}
        for model, metrics in result.metrics.items()
    ]
    json.dump(rows, sys.stdout, indent=1)
    print()


def predict(ask: Question) -> None:
    """Write what models say about a split, and print how it begins."""
    experiment, task = _open(ask)
    result = experiment.run_predict(
        task,
        list(ask.models),
        ask.batch_size,
        split=ask.split,
        which=ask.which,
        device=ask.device,
        output=ask.output,
    )
    print(result)


def export(
    run: str,
    trial: str,
    *,
    to: str,
    output: Path | None,
    which: str,
    columns: list[str] | None,
    task: str | None,
) -> None:
    """Write a trial's model as a file, and print where it is."""
    _import_from_here()
    open_directory(run)
    result = Result.open(run)
    given = None if task is None else import_task(_task_name(task))
    chosen = _number(trial)
    print(result.export(chosen, to=to, path=output, which=which, columns=columns, task=given))


def _open(ask: Question) -> tuple[Experiment, str]:
    """The run as an experiment, and the name of its task."""
    _import_from_here()
    open_directory(ask.run)
    result = Result.open(ask.run)
    document = result.document
    task = result.task_name() if ask.task is None else _task_name(ask.task)
    store, _, name = result.path.rpartition("/")
    experiment = Experiment(
        name=name,
        data=str(document.spec["data"]) if ask.data is None else ask.data,
        store=store or "/",
        workers=ask.workers,
        threads_per_worker=int(str(document.spec["threads_per_worker"])),
    )
    return experiment, task


def _task_name(text: str) -> str:
    """As workers can import it, whatever their directory is."""
    return str(task_reference(text, Path.cwd()))


def _number(trial: str) -> str | int:
    return int(trial) if trial.isascii() and trial.isdecimal() else trial


def _import_from_here() -> None:
    """Tasks may be modules of the current directory, as when they were trained."""
    here = os.getcwd()
    if here not in sys.path:
        sys.path.insert(0, here)
