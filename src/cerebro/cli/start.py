"""`cerebro start`, `url`, `restart` and `shutdown`: the services of a workspace."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from pathlib import Path

from cerebro.cli.table import format_columns
from cerebro.errors import UsageError
from cerebro.launch import Endpoint, Overview, open_launcher


def start(workspace: Path, *, on: str, workers: int | None, runs: str | None) -> int:
    """Start what is not running and say where it is; the exit code is 1 if something failed."""
    overview = open_launcher(on, workspace).start(workers=workers, runs=runs)
    show(overview)
    return 1 if overview.failed else 0


def url(workspace: Path, *, on: str) -> None:
    """Say where the services are."""
    overview = open_launcher(on, workspace).url()
    if not overview.endpoints:
        _tell(overview)
        raise UsageError(
            f"no service of {overview.workspace} is running: start them with `cerebro start`."
        )
    show(overview)


def restart(workspace: Path, *, on: str, workers: int | None, runs: str | None) -> int:
    """End the services and start them again, on the same ports where those are free."""
    launcher = open_launcher(on, workspace)
    _tell(launcher.stop())
    overview = launcher.start(workers=workers, runs=runs)
    show(overview)
    return 1 if overview.failed else 0


def shutdown(workspace: Path, *, on: str) -> None:
    """End the services."""
    overview = open_launcher(on, workspace).stop()
    _tell(overview)
    if not overview.notes:
        print(f"no service of {overview.workspace} is running")


def show(overview: Overview) -> None:
    """A table of addresses and how to reach them from another machine."""
    _tell(overview)
    if overview.endpoints:
        print(format_columns([(each.name, each.url) for each in overview.endpoints]))
        print(f"\nFrom another machine: {tunnel(overview.endpoints, overview.host)}")


def tunnel(endpoints: Sequence[Endpoint], host: str) -> str:
    """The command that makes the addresses work on another machine.

    >>> tunnel([Endpoint(name="reports", port=4711, url="")], "node7").split(" ", 4)[:4]
    ['ssh', '-N', '-L', '4711:127.0.0.1:4711']
    """
    forwards = " ".join(f"-L {each.port}:127.0.0.1:{each.port}" for each in endpoints)
    return f"ssh -N {forwards} {getpass.getuser()}@{host}"


def _tell(overview: Overview) -> None:
    for note in overview.notes:
        print(note)
