"""Jobs of SLURM: a batch script that anybody can read, and one that comes back after its limit."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from cerebro import __version__
from cerebro.config.launching import read_section
from cerebro.errors import UsageError

_TIME = re.compile(r"\d+(:\d\d){0,2}|\d+-\d+(:\d\d){0,2}")
#: What a value may consist of: nothing that ends a line or a quotation.
_VALUE = re.compile(r"[^\x00-\x1f\x7f\"'`$\\]+")
#: A job that was put back into the queue so often makes no progress.
MOST_RESTARTS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class SlurmJob:
    """What a job asks of SLURM.

    >>> SlurmJob(job_name="cifar", nodes=8, time="1:00:00").output
    'logs/%x-%j.out'
    """

    #: `%x` in the log's name.
    job_name: str
    nodes: int = 1
    #: As SLURM takes it: minutes, H:MM:SS, D-HH.
    time: str
    #: Ranks of each node.
    procs_per_node: int = 1
    cpus_per_task: int | None = None
    gpus_per_node: int | None = None
    constraint: str | None = None
    qos: str | None = None
    account: str | None = None
    partition: str | None = None
    reservation: str | None = None
    output: str = "logs/%x-%j.out"
    #: Seconds before the limit at which state is saved; SLURM may be up to a minute early.
    signal_before: int = 120

    def __post_init__(self) -> None:
        if not _TIME.fullmatch(self.time):
            raise UsageError(
                "time must be minutes, H:MM:SS or D-HH:MM:SS, such as 1:00:00, but got "
                f"{self.time!r}."
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, int) and value < (field.name != "signal_before"):
                raise UsageError(f"{field.name} must be at least 1, but got {value}.")
            if isinstance(value, str) and not _VALUE.fullmatch(value):
                raise UsageError(
                    f"{field.name} must be text without quotes, backslashes or control "
                    f"characters, but got {value!r}."
                )

        limit = _seconds(self.time)
        if 0 < limit <= self.signal_before:
            raise UsageError(
                f"time must be longer than the {self.signal_before} s before its end at which "
                f"state is saved, but got {self.time}: the job would be stopped as it begins. Give "
                "it more time, or a smaller --signal-before."
            )

    @property
    def ranks(self) -> int:
        return self.nodes * self.procs_per_node


def _seconds(time: str) -> int:
    """A limit as SLURM reads it; 0 is none.

    >>> _seconds("30"), _seconds("1:30"), _seconds("1:00:00"), _seconds("2-12")
    (1800, 90, 3600, 216000)
    """
    days, dash, rest = time.rpartition("-")
    numbers = [int(number) for number in rest.split(":")]
    if not dash and len(numbers) < 3:
        numbers = [0, *numbers]
    hours, minutes, seconds = [*numbers, 0, 0][:3]
    return ((24 * int(days or 0) + hours) * 60 + minutes) * 60 + seconds


def make_job(section: Mapping[str, Any], given: Mapping[str, Any], name: str) -> SlurmJob:
    """A job as the `launch` section of a file says, but for what was given with the command.

    >>> make_job({"nodes": 2, "time": "30"}, {"nodes": 4}, "cifar").nodes
    4
    """
    said = read_section(section, "slurm")
    wanted: dict[str, Any] = {"job_name": name}
    wanted |= {key: value for key, value in said.items() if key != "kind"}
    wanted |= {key: value for key, value in given.items() if value is not None}
    if "time" not in wanted:
        raise UsageError(
            "a job must say how long it may take, but got no time. Give --time 1:00:00, or `time` "
            "in the launch section of the file."
        )
    return SlurmJob(**wanted)


def render(job: SlurmJob, command: Sequence[str], *, directory: str, on_ray: bool = False) -> str:
    """The batch script of a job that runs a command in a directory, on all of its nodes.

    Args:
        on_ray: The command makes the nodes one Ray cluster: they get a token that nobody else has.
    """
    if on_ray and job.procs_per_node > 1:
        raise UsageError(
            f"with Ray each node has one task, which starts as many workers as it has room for, "
            f"but got procs_per_node={job.procs_per_node}. Leave it out."
        )
    options = {
        "job-name": job.job_name,
        "nodes": job.nodes,
        "ntasks-per-node": job.procs_per_node,
        "cpus-per-task": job.cpus_per_task,
        "gpus-per-node": job.gpus_per_node,
        "constraint": job.constraint,
        "qos": job.qos,
        "account": job.account,
        "partition": job.partition,
        "reservation": job.reservation,
        "time": job.time,
        "output": job.output,
        "open-mode": "append",
        "signal": f"USR1@{job.signal_before}",
    }
    lines = [
        f"#SBATCH --{name}={_quoted(str(value))}"
        for name, value in options.items()
        if value is not None
    ]
    return _SCRIPT.format(
        directives="\n".join([*lines, "#SBATCH --requeue"]),
        version=__version__,
        roles=_ON_RAY if on_ray else _RANKS,
        directory=shlex.quote(directory),
        token=_ACCESS.format(python=shlex.quote(command[0])) if on_ray else "",
        step=_step(job),
        command=shlex.join(command),
        restarts=MOST_RESTARTS,
        before=job.signal_before,
    )


_SCRIPT = """\
#!/bin/bash
{directives}

# Written by cerebro {version}. {roles}
# {before} s before the limit SLURM signals all of them: the run saves its state and ends with 75.
# The job then goes back into the queue, and the same command resumes the run.

cd {directory} || exit 1
{token}
{step} \\
    {command}
code=$?

if [ "$code" -eq 75 ] && [ "${{SLURM_RESTART_COUNT:-0}}" -lt {restarts} ]; then
    echo "state saved: back into the queue"
    scontrol requeue "$SLURM_JOB_ID"
elif [ "$code" -eq 75 ]; then
    echo "state saved, but the job was put back {restarts} times already:"
    echo "hand it in again, with output_dir=DIRECTORY of this one if that has the job's number"
fi
exit "$code"
"""


_RANKS = "Each task is a rank; rank 0 drives the run, the others serve it."
_ON_RAY = "Each task is a node of one Ray cluster; the first drives the run."
_ACCESS = """
# Known to this job alone: without it nobody joins its Ray cluster, or gives it work.
RAY_AUTH_TOKEN=$({python} -c 'import secrets; print(secrets.token_hex(32))') || exit 1
export RAY_AUTH_MODE=token RAY_AUTH_TOKEN
"""


def _step(job: SlurmJob) -> str:
    # The others hear from rank 0 how it ends; killed, they would hide its exit code.
    words = ["srun", "--kill-on-bad-exit=0"]
    if job.cpus_per_task is not None:
        # Since SLURM 22.05 a step does not get those of its job.
        words.append(f"--cpus-per-task={job.cpus_per_task}")
    return " ".join(words)


def _quoted(value: str) -> str:
    """As sbatch reads it: blanks and `#` end a value that stands in no quotes."""
    return f'"{value}"' if re.search(r"[\s#]", value) else value


def make_log_directory(job: SlurmJob, directory: str) -> Path:
    """SLURM does not: without it a job fails, and says so nowhere."""
    parent = Path(directory, os.path.dirname(job.output).partition("%")[0])
    parent.mkdir(parents=True, exist_ok=True)
    return parent
