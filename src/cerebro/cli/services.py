"""The commands of a workspace and their options."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Workspace = Annotated[
    Path,
    typer.Argument(metavar="WORKSPACE", help="The directory with the notebooks; default this one."),
]
On = Annotated[str, typer.Option("--on", metavar="WHERE", help="Where services run: local.")]
Workers = Annotated[
    int | None,
    typer.Option(
        "--workers",
        metavar="N",
        min=1,
        help="Workers of experiments here that do not say how many; remembered.",
        show_default=False,
    ),
]
Runs = Annotated[
    str | None,
    typer.Option(
        "--runs",
        metavar="DIR",
        help="The directory of runs to show; remembered. At first: runs.",
        show_default=False,
    ),
]
HERE = Path(".")


def start(
    workspace: Workspace = HERE, workers: Workers = None, runs: Runs = None, on: On = "local"
) -> None:
    """Start JupyterLab, TensorBoard and the pages of runs for a workspace."""
    from cerebro.cli import start as services

    raise typer.Exit(services.start(workspace, on=on, workers=workers, runs=runs))


def url(workspace: Workspace = HERE, on: On = "local") -> None:
    """Print the addresses of a workspace's services again."""
    from cerebro.cli import start as services

    services.url(workspace, on=on)


def restart(
    workspace: Workspace = HERE, workers: Workers = None, runs: Runs = None, on: On = "local"
) -> None:
    """End the services of a workspace and start them again, on the same ports."""
    from cerebro.cli import start as services

    raise typer.Exit(services.restart(workspace, on=on, workers=workers, runs=runs))


def shutdown(workspace: Workspace = HERE, on: On = "local") -> None:
    """End the services of a workspace, and nothing else."""
    from cerebro.cli import start as services

    services.shutdown(workspace, on=on)


COMMANDS = (start, url, restart, shutdown)
