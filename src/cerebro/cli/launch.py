"""`cerebro launch`: hand an experiment to a batch system, and ask what became of it."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from cerebro.config.schema import ExperimentConfig
    from cerebro.launch.slurm import SlurmJob

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
    on: Annotated[
        str | None,
        typer.Option(
            metavar="BACKEND",
            help="ray: trials hop between the workers of all machines. Default the file's backend.",
            show_default=False,
        ),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the batch script, hand in nothing.")
    ] = False,
) -> None:
    """Hand a job in that trains on many machines, and comes back until the run is finished.

    With --on ray (or `backend: ray`) the machines become one Ray cluster, whose workers share many
    trials; else all of them train each trial together. Give parallel=ddp for that: with auto, the
    default of recipes, all but one machine wait where sharing a single trial does not pay. Options
    that are left out are those of the file's `launch` section.
    """
    from cerebro.config.files import load_file
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
    changes = [*(overrides or []), *([] if on is None else [f"backend={on}"])]
    config = load_file(experiment, changes)
    job = make_job(config.launch, given, experiment.stem.replace("_", "-"))
    on_ray = _check(config, experiment, changes, job)
    order = ["launch", "ray"] if on_ray else ["run"]
    command = [sys.executable, "-u", "-m", "cerebro", *order, str(experiment), *changes]
    script = render(job, command, directory=os.getcwd(), on_ray=on_ray)
    if dry_run:
        print(script, end="")
        return
    make_log_directory(job, os.getcwd())
    number = submit(script, directory=os.getcwd())
    log = job.output.replace("%x", job.job_name).replace("%j", str(number))
    those = "one Ray cluster" if on_ray else f"{job.ranks} ranks"
    print(f"job {number} is in the queue: {job.nodes} nodes, {those}, {job.time}")
    print(f"log:     {log}\nstatus:  cerebro status {number}\nend:     scancel {number}")


def k8s(
    experiment: ExperimentFile,
    overrides: Overrides = None,
    kind: Annotated[
        str | None,
        typer.Option(
            metavar="KIND",
            help="rayjob: a Ray cluster for this run; raycluster: one that stays; job: one pod "
            "without Ray.",
            show_default="rayjob",
        ),
    ] = None,
    image: Annotated[
        str | None,
        typer.Option(metavar="IMAGE", help="What the pods run.", show_default=False),
    ] = None,
    nodes: Annotated[
        int | None,
        typer.Option("--nodes", "-N", metavar="N", min=1, help="Pods.", show_default="1"),
    ] = None,
    gpus: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="Of each pod.", show_default="0")
    ] = None,
    cpus: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Of each pod.", show_default="4")
    ] = None,
    memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Of each pod.", show_default="16Gi")
    ] = None,
    namespace: Text = None,
    volume: Annotated[
        str | None,
        typer.Option(
            metavar="CLAIM",
            help="A PersistentVolumeClaim for data and runs; relative paths are below it.",
            show_default=False,
        ),
    ] = None,
    mount: Annotated[
        str | None,
        typer.Option(metavar="PATH", help="Where pods have it.", show_default="/store"),
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="A Secret whose keys become environment variables. May be given several times.",
            show_default=False,
        ),
    ] = None,
    service_account: Text = None,
    workdir: Annotated[
        str | None,
        typer.Option(
            metavar="PATH",
            help="Where the image has the code; else Python files beside EXPERIMENT travel along.",
            show_default=False,
        ),
    ] = None,
    name: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Default the file's name.", show_default=False),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print the objects, hand in nothing.")
    ] = False,
) -> None:
    """Run an experiment on Kubernetes: on Ray pods (KubeRay), or in a Job of one pod.

    Options that are left out are those of the file's `launch` section.
    """
    import shlex

    from cerebro.config.files import load_document
    from cerebro.config.yaml import write_documents
    from cerebro.launch.k8s import make_job
    from cerebro.launch.k8s_commands import apply, hints
    from cerebro.launch.k8s_files import adapt, collect_files
    from cerebro.launch.k8s_manifest import make_objects

    given = {
        "kind": kind,
        "image": image,
        "nodes": nodes,
        "gpus": gpus,
        "cpus": cpus,
        "memory": memory,
        "namespace": namespace,
        "volume": volume,
        "mount": mount,
        "secrets": secret,
        "service_account": service_account,
        "workdir": workdir,
        "name": name,
    }
    changes = overrides or []
    config = _load_elsewhere(experiment, changes)
    job = make_job(config.launch, given, experiment.stem)
    _check_goal(config, experiment, changes, job.nodes, {"gpus": job.gpus})
    tree = adapt(load_document(experiment, changes).tree, job, experiment.stem)
    manifest = write_documents(make_objects(job, collect_files(experiment, tree, job)))
    if dry_run:
        print(manifest, end="")
        return
    print(apply(manifest, namespace=job.namespace))
    for what, command in hints(job).items():
        print(f"{what + ':':9}{shlex.join(command)}")


def ray(experiment: ExperimentFile, overrides: Overrides = None) -> None:
    """In a job: make its nodes one Ray cluster, and train there; the same as `cerebro run`.

    For scripts of your own, as `srun --ntasks-per-node=1 cerebro launch ray EXPERIMENT`; `cerebro
    launch slurm --on ray` writes one. RAY_AUTH_TOKEN must be set, to the same on all nodes.
    """
    from importlib.util import find_spec

    from cerebro.cli.run import run_experiment, tell_on_stderr
    from cerebro.config.files import load_file
    from cerebro.errors import MissingDependencyError

    if find_spec("ray") is None:
        raise MissingDependencyError("Ray is needed. Install it with `pip install 'cerebro[ray]'`.")
    from cerebro.launch.allocation import run_over_nodes

    tell_on_stderr(logging.INFO)
    changes = overrides or []
    if load_file(experiment, changes).backend != "ray":
        changes = [*changes, "backend=ray"]
    name = load_file(experiment, changes).name

    def work() -> int:
        return run_experiment(
            experiment, changes, fresh=False, force=False, strict=False, quiet=False
        )

    def count(address: str, wanted: int, timeout_s: float) -> int:
        # As late as this: Ray looks once, when it is imported, whether there are tokens.
        from cerebro.launch.ray_nodes import count_nodes

        return count_nodes(address, wanted, timeout_s)

    raise typer.Exit(run_over_nodes(name, work, count))


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


def _check(config: ExperimentConfig, experiment: Path, changes: list[str], job: SlurmJob) -> bool:
    """Find what does not fit a job now rather than in it; whether it runs on Ray."""
    from cerebro.errors import UsageError
    from cerebro.run.parallel import Mode, parse_parallel

    gpus = {"gpus_per_node": job.gpus_per_node}
    _check_goal(config, experiment, changes, job.nodes, gpus)
    if config.backend == "ray":
        return True
    ranks = job.ranks
    mode = parse_parallel(config.parallel, config.workers_per_trial).mode
    if ranks > 1 and mode not in (Mode.DDP, Mode.AUTO):
        raise UsageError(
            f"{ranks} ranks of a job train each trial together, as parallel=ddp says, but "
            f"{experiment} says {mode}. Add parallel=ddp; or --on ray, so that trials hop between "
            "the workers of all machines; or ask for one node and one rank."
        )
    return False


def _check_goal(
    config: ExperimentConfig,
    experiment: Path,
    changes: list[str],
    nodes: int,
    gpus: Mapping[str, int | None],
) -> None:
    """Refuse a job that the goal of the file does not allow."""
    from cerebro.cli.located import located
    from cerebro.search.allowance import allowance_of

    allowed = allowance_of(config.goal)
    with located(config, experiment, changes):
        allowed.check_nodes(nodes, "--nodes")
        for key, count in gpus.items():
            allowed.check_gpus(count or 0, key)


def _load_elsewhere(experiment: Path, changes: list[str]) -> ExperimentConfig:
    """Find what is wrong with a file whose data is where the pods are."""
    from cerebro.config.files import is_recipe_file, load_file

    elsewhere = ["data=file:///elsewhere", "learn_from=null"]
    return load_file(experiment, [*changes, *([] if is_recipe_file(experiment) else elsewhere)])


COMMANDS = (slurm, k8s, ray, status)
