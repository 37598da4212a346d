"""The command of benchmarks and its options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Swept = Annotated[
    list[str] | None,
    typer.Option(
        "--sweep",
        metavar="KEY=V,V",
        help="A key and its values, such as batch_size=32,64,256; may be given several times.",
        show_default=False,
    ),
]
Counts = Annotated[str, typer.Option(metavar="N,N", help="How many nodes train together.")]
Procs = Annotated[str, typer.Option(metavar="N,N", help="Processes on each node.")]


def bench(
    experiment: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG", help="A recipe or an experiment file (YAML).", show_default=False
        ),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="KEY.SUB=VALUE", help="Changes that hold for all settings.", show_default=False
        ),
    ] = None,
    sweep: Swept = None,
    nodes: Counts = "1",
    procs: Procs = "1",
    batch: Annotated[
        str,
        typer.Option(
            metavar="RULE",
            help="With several processes a batch size is that of all (global), of each (rank); "
            "or compare both.",
        ),
    ] = "both",
    checkpoint: Annotated[
        bool,
        typer.Option("--checkpoint", help="Also compare saving states with not saving them."),
    ] = False,
    repeats: Annotated[int, typer.Option(metavar="N", min=1, help="Runs of each setting.")] = 1,
    interval: Annotated[
        float, typer.Option(metavar="SECONDS", min=0.05, help="Between two samples.")
    ] = 1.0,
    hosts: Annotated[
        str | None,
        typer.Option(
            metavar="A,B",
            help="Machines to run nodes on by ssh, with the same paths, the first on a disk that "
            "is here, too; default: simulated here.",
            show_default=False,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR", help="Where to; default bench-<name of the file>.", show_default=False
        ),
    ] = None,
) -> None:
    """Train under different settings, one after the other, and compare them in one report.

    Each setting runs as real processes, with its processors, memory, disks and networks sampled.
    Running it again goes on with what is missing.
    """
    from cerebro.cli import benching

    raise typer.Exit(
        benching.run_bench(
            benching.Request(
                path=experiment,
                overrides=tuple(overrides or ()),
                sweep=tuple(sweep or ()),
                nodes=nodes,
                procs=procs,
                batch=batch,
                is_saved=checkpoint,
                repeats=repeats,
                interval_s=interval,
                hosts=tuple(filter(None, (hosts or "").split(","))),
                out=out,
            )
        )
    )


COMMANDS = (bench,)
