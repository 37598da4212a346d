"""The commands that use trained models, and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

RunDirectory = Annotated[
    str, typer.Argument(metavar="RUN", help="A run's directory or URL.", show_default=False)
]
Models = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="MODEL",
        help="Trials (t0007 or 7), best, or files of models; default best. Several: one pass.",
        show_default=False,
    ),
]
Data = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Another dataset than the run's.", show_default=False),
]
BatchSize = Annotated[
    int | None, typer.Option(metavar="N", min=1, help="Rows at a time.", show_default=False)
]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", min=1, help="How many; default as for a run.", show_default=False),
]
Device = Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.")]
Which = Annotated[
    str, typer.Option(metavar="STATE", help="Of a trial: its best epoch, or its final state.")
]
TaskName = Annotated[
    str | None,
    typer.Option(
        "--task",
        metavar="TASK",
        help="file.py:Class or module:Class, if the run's task lived in a notebook or script.",
        show_default=False,
    ),
]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", metavar="PATH", help="Where to.", show_default=False),
]
AsJson = Annotated[bool, typer.Option("--json", help="A JSON array.")]


def test(
    run: RunDirectory,
    model: Models = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="What to test on.")] = "test",
    data: Data = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
    which: Which = "best",
    task: TaskName = None,
    as_json: AsJson = False,
) -> None:
    """Metrics of trained models over the test split."""
    from cerebro.cli import scores

    ask = scores.Question(
        run=run,
        models=tuple(model or ["best"]),
        split=split,
        data=data,
        batch_size=batch_size,
        workers=workers,
        device=device,
        which=which,
        task=task,
    )
    scores.test(ask, is_json=as_json)


def predict(
    run: RunDirectory,
    model: Models = None,
    split: Annotated[str, typer.Option(metavar="SPLIT", help="What to predict.")] = "predict",
    data: Data = None,
    batch_size: BatchSize = None,
    workers: Workers = None,
    device: Device = "auto",
    which: Which = "best",
    task: TaskName = None,
    output: Output = None,
) -> None:
    """What trained models say about each row, as CSV and Parquet."""
    from cerebro.cli import scores

    ask = scores.Question(
        run=run,
        models=tuple(model or ["best"]),
        split=split,
        data=data,
        batch_size=batch_size,
        workers=workers,
        device=device,
        which=which,
        task=task,
        output=output,
    )
    scores.predict(ask)


def export(
    run: RunDirectory,
    trial: Annotated[
        str, typer.Argument(metavar="TRIAL", help="t0007, 7 or best.", show_default=False)
    ],
    to: Annotated[
        str, typer.Option(metavar="FORM", help="safetensors, onnx, torch-export or keras.")
    ] = "safetensors",
    output: Output = None,
    which: Which = "best",
    columns: Annotated[
        str | None,
        typer.Option(
            metavar="NAMES",
            help="What the model's forward takes, separated by commas; default x.",
            show_default=False,
        ),
    ] = None,
    task: TaskName = None,
) -> None:
    """Write a trial's model as a file for other programs."""
    from cerebro.cli import scores

    names = None if columns is None else columns.split(",")
    scores.export(run, trial, to=to, output=output, which=which, columns=names, task=task)


COMMANDS = (test, predict, export)
