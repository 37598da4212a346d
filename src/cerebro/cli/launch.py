"""`cerebro launch`: hand an experiment to a batch system, and ask what became of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, cast

import typer

ExperimentFile = Annotated[
    Path,
    typer.Argument(metavar="EXPERIMENT", help="The experiment file (YAML).", show_default=False),
]
Overrides = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="KEY.SUB=VALUE", help="Changes to the file, such as epochs=3.", show_default=False
    ),
]
Job = Annotated[int, typer.Argument(metavar="JOB", help="A job's number.", show_default=False)]
Count = Annotated[int | None, typer.Option(metavar="N", min=1, show_default=False)]
Text = Annotated[str | None, typer.Option(metavar="NAME", show_default=False)]


def slurm(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-N", metavar="N", min=1, help="Machines.", show_default="1"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option("--time", "-t", metavar="H:MM:SS", help="The limit.", show_default=False),
    ] = None,
    procs_per_node: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Ranks of each machine.", show_default="1"),
    ] = None,
    cpus_per_task: Count = None,
    gpus_per_node: Count = None,
    constraint: Text = None,
    qos: Text = None,
    account: Text = None,
    partition: Text = None,
    reservation: Text = None,
    job_name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default the file's name.", show_default=False),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="The log; %x is the job's name, %j its number.",
            show_default="logs/%x-%j.out",
        ),
    ] = None,
    signal_before: Annotated[
        int | None,
        typer.Option(
            metavar="SECONDS",
            min=0,
            help="Save state so long before the limit, and go back into the queue.",
            show_default="120",
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script, hand in nothing.")
    ] = False,
) -> None:
    """Hand a job in that trains on many machines, and comes back until the run is finished.

    Options that are left out are those of the file's `launch` section.
    """
    from cerebro.launch.slurm import make_job, make_log_directory, render
    from cerebro.launch.slurm_commands import submit

    given = {
        "nodes": nodes,
        "time": time,
        "procs_per_node": procs_per_node,
        "cpus_per_task": cpus_per_task,
        "gpus_per_node": gpus_per_node,
        "constraint": constraint,
        "qos": qos,
        "account": account,
        "partition": partition,
        "reservation": reservation,
        "job_name": job_name,
        "output": output,
        "signal_before": signal_before,
    }
    changes = overrides or []
    job = make_job(_section(experiment, changes), given, experiment.stem.replace("_", "-"))
    _check(experiment, changes, job.ranks)
    command = [sys.executable, "-u", "-m", "cerebro", "run", str(experiment), *changes]
    script = render(job, command, directory=os.getcwd())
    if dry_run:
        print(script, end="")
        return
    make_log_directory(job, os.getcwd())
    number = submit(script, directory=os.getcwd())
    log = job.output.replace("%x", job.job_name).replace("%j", str(number))
    print(f"job {number} is in the queue: {job.nodes} nodes, {job.ranks} ranks, {job.time}")
    print(f"log:     {log}\nstatus:  cerebro status {number}\nend:     scancel {number}")


def status(job: Job) -> None:
    """How a job is doing, and the end of its log. `cerebro status JOB` is short for it."""
    show_job(job)


def show_job(job: int) -> None:
    """Write what SLURM knows of a job to standard output, and the end of its log."""
    from cerebro.cli.table import format_columns
    from cerebro.launch.slurm_commands import find_status, tail
    from cerebro.track.text import clean

    found = find_status(job)
    state = found.state.lower() + (f": {clean(found.reason)}" if found.reason else "")
    rows = [
        ("job", f"{job}  {clean(found.name)}"),
        ("state", state),
        ("nodes", found.nodes or "none yet"),
        ("time", f"{found.elapsed} of {found.limit}"),
        ("restarts", str(found.restarts)),
        ("log", found.log),
    ]
    print(format_columns(rows))
    lines = tail(found.log)
    if lines:
        print()
        for line in lines:
            print(f"  {clean(line, 200)}")


def _section(experiment: Path, changes: list[str]) -> Mapping[str, object]:
    """The `launch` section of a file."""
    from cerebro.config.files import load_document

    tree = cast("dict[str, Mapping[str, object]]", load_document(experiment, changes).tree)
    return tree.get("launch") or {}


def _check(experiment: Path, changes: list[str], ranks: int) -> None:
    """Find what is wrong with a file now rather than in the job."""
    from cerebro.config.files import load_file
    from cerebro.errors import UsageError
    from cerebro.run.parallel import Mode, parse_parallel

    config = load_file(experiment, changes)
    mode = parse_parallel(config.parallel, config.workers_per_trial).mode
    if ranks > 1 and mode not in (Mode.DDP, Mode.AUTO):
        raise UsageError(
            f"{ranks} ranks of a job train each trial together, as parallel=ddp says, but "
            f"{experiment} says {mode}. Add parallel=ddp, or ask for one node and one rank: trials "
            "hop between the workers of one machine."
        )


COMMANDS = (slurm, status)
