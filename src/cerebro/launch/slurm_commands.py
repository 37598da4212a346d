"""SLURM's own commands: hand in a job, ask what became of it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.errors import CerebroError, UsageError

_ANSWER_S = 60.0
_LOG_LINES = 20
#: What SLURM says of a job that it does not know, or not any more.
_UNKNOWN = "Invalid job id"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """What SLURM knows of a job."""

    job: int
    name: str
    state: str
    #: Why it waits, or what it ended with.
    reason: str
    nodes: str
    elapsed: str
    limit: str
    restarts: int
    log: str


def submit(script: str, *, directory: str) -> int:
    """Hand a batch script in; the job's number."""
    answer = _ask(["sbatch", "--parsable"], stdin=script, cwd=directory)
    number = answer.strip().partition(";")[0]
    if not number.isdigit():
        raise CerebroError(f"sbatch must answer with a job's number, but said {answer.strip()!r}.")
    return int(number)


def find_status(job: int) -> JobStatus:
    """How a job is doing, or how it has ended as long as SLURM remembers."""
    try:
        text = _ask(["scontrol", "show", "job", "--oneliner", str(job)])
    except CerebroError as error:
        if _UNKNOWN not in str(error):
            raise
        raise CerebroError(
            f"SLURM must know of job {job}, but does not: it never had one, or the job ended some "
            "minutes ago and is forgotten. How it ended is at the end of its log "
            f"(logs/*-{job}.out unless --output said otherwise), or in `sacct -j {job}`."
        ) from None
    found = parse_job(text)
    state, reason = found.get("JobState", "UNKNOWN"), found.get("Reason", "None")
    code = found.get("ExitCode", "0:0").partition(":")[0]
    if state not in _WAITING and code != "0":
        reason = f"exit code {code}"
    return JobStatus(
        job=job,
        name=found.get("JobName", ""),
        state=state,
        reason="" if reason == "None" else reason,
        nodes=found.get("NodeList", "").replace("(null)", ""),
        elapsed=found.get("RunTime", ""),
        limit=found.get("TimeLimit", ""),
        restarts=int(found.get("Restarts", "0")),
        log=found.get("StdOut", ""),
    )


_WAITING = ("PENDING", "RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "REQUEUED")


def parse_job(text: str) -> dict[str, str]:
    """What `scontrol show job --oneliner` says.

    >>> parse_job("JobId=7 JobName=my job JobState=RUNNING Reason=None")["JobName"]
    'my job'
    """
    words = re.split(r"(?:^|\s)([A-Z][\w:/]*)=", text.strip())
    return {name: value.strip() for name, value in zip(words[1::2], words[2::2], strict=True)}


def tail(path: str, lines: int = _LOG_LINES) -> list[str]:
    """The last lines of a log; none if it is not there, or not yet."""
    with contextlib.suppress(OSError), open(path, encoding="utf-8", errors="replace") as file:
        return [line.rstrip("\n") for line in deque(file, maxlen=lines)]
    return []


def _ask(command: Sequence[str], *, stdin: str | None = None, cwd: str | None = None) -> str:
    if shutil.which(command[0]) is None:
        also = " --dry-run shows the script anywhere." if stdin is not None else ""
        raise UsageError(
            f"SLURM's `{command[0]}` must be on the PATH, but is not: do this on a machine that "
            f"hands in jobs.{also}"
        )
    try:
        done = subprocess.run(
            command,
            input=stdin,
            cwd=cwd or os.getcwd(),
            capture_output=True,
            text=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        told = f"SLURM does not answer: {command[0]} took over {_ANSWER_S:.0f} s."
        raise CerebroError(told) from None
    if done.returncode:
        raise CerebroError(f"{command[0]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout
