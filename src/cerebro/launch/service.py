"""The process of one service: `python -P -m cerebro.launch.service NAME WORKSPACE`.

What it needs to know comes through its standard input, token included: arguments and environment
of a process can be read by others, or are handed on to its children.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path

from cerebro.launch.gate import Gate
from cerebro.launch.reports import report_app
from cerebro.launch.server import LoopbackServer

MODULE = "cerebro.launch.service"


def serve_reports(*, port: int, token: str, runs: Path, workspace: Path) -> None:
    """Serve the pages of the runs until the process is ended."""
    gate = Gate(report_app(runs), token=token, name=f"reports-{port}", methods=("GET", "HEAD"))
    with LoopbackServer(gate, port) as server:
        server.serve_forever()


#: Service -> the module whose `serve` runs it, and the package that it needs.
OPTIONAL: Mapping[str, tuple[str, str]] = {
    "jupyter": ("cerebro.launch.jupyter", "jupyterlab"),
    "tensorboard": ("cerebro.launch.tensorboard", "tensorboard"),
}
NAMES = (*OPTIONAL, "reports")


def command(name: str, workspace: Path) -> list[str]:
    """The command line of a service. Files beside the user's notebooks shadow no module of it."""
    return [sys.executable, "-P", "-m", MODULE, name, str(workspace)]


def main(name: str, workspace: str) -> None:
    """Run a service."""
    given = json.load(sys.stdin)
    with open(os.devnull, "rb") as nothing:
        os.dup2(nothing.fileno(), 0)
    serve = serve_reports
    if name in OPTIONAL:
        serve = importlib.import_module(OPTIONAL[name][0]).serve
    serve(
        port=given["port"],
        token=given["token"],
        runs=Path(given["runs"]),
        workspace=Path(workspace),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
