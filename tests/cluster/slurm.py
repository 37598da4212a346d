"""A real SLURM for tests: a controller and one slurmd on each of some machines (namespaces)."""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cluster.namespaces import Machine, why_not
from tests.processes import wait_for

START_S = 180.0
#: How long a job that is queued anew waits before it starts, and its steps may take to; a site has
#: 120.
REQUEUE_S = 15
#: A job is to be told so many seconds before its limit. SLURM looks every 30 s; the rest is for the
#: job, however busy the machine is.
BEFORE_S = 210
_LEFT_MIN = 4
#: How often the controller is asked: each time is a process more.
_LOOK_S = 0.5
_SERVERS = ("munged", "slurmctld", "slurmd", "sbatch", "scontrol", "squeue", "srun")


def why_no_slurm() -> str | None:
    """Why there can be no SLURM here; None if there can."""
    missing = [name for name in _SERVERS if shutil.which(name, path=_PATH) is None]
    if missing:
        return f"needs {', '.join(missing)} (Debian: slurm-wlm and munge; `make slurm`)"
    return why_not()


_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"


class SlurmCluster:
    """A cluster whose nodes have the names of the machines; the controller is on the first.

    Args:
        folder: Where the servers keep everything.
    """

    def __init__(self, folder: Path, nodes: Sequence[Machine]) -> None:
        self._folder = folder
        self._nodes = nodes
        self._servers: list[subprocess.Popen[bytes]] = []
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}

    def start(self) -> None:
        """Start all servers; returns once jobs can run on every node."""
        self._write_settings()
        first = self._nodes[0]
        munge = self._munge_options()
        self._spawn("munged", first.command("munged", "--foreground", "--force", *munge))
        wait_for((self._folder / "munge.socket").exists, "munged", START_S)
        self._spawn("slurmctld", first.command("slurmctld", "-D"))
        for node in self._nodes:
            self._spawn(f"slurmd-{node.name}", node.command("slurmd", "-D", "-N", node.name))
        wait_for(self._is_ready, f"SLURM; see the logs in {self._folder}", START_S)

    def stop(self) -> None:
        for server in reversed(self._servers):
            server.terminate()
        for server in reversed(self._servers):
            try:
                server.wait(10)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()

    def run(self, *words: str, cwd: Path, env: Mapping[str, str] | None = None) -> str:
        """What a command on the first node writes; it must succeed."""
        done = subprocess.run(
            self._nodes[0].command(*words),
            cwd=cwd,
            env={**os.environ, **self.environment, **(env or {})},
            capture_output=True,
            text=True,
            timeout=START_S,
            check=False,
        )
        assert done.returncode == 0, f"{words}: {done.stdout}{done.stderr}"
        return done.stdout

    def show(self, job: int) -> dict[str, str]:
        """What SLURM knows of a job."""
        text = self.run("scontrol", "show", "job", "-o", str(job), cwd=self._folder)
        return dict(re.findall(r"(\S+?)=(\S*)", text))

    def limit(self, job: int, minutes: int) -> None:
        """So many minutes a job may take in all."""
        self.run("scontrol", "update", f"JobId={job}", f"TimeLimit={minutes}", cwd=self._folder)

    def end_soon(self, job: int) -> None:
        """A job that is to be told `BEFORE_S` before its limit is, when SLURM looks next."""
        hours, minutes, _ = map(int, self.show(job)["RunTime"].split(":"))
        self.limit(job, 60 * hours + minutes + _LEFT_MIN)

    def wait_for_end(self, job: int, timeout_s: float) -> dict[str, str]:
        """Until a job is through; then what SLURM knows of it."""
        ended = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL")
        return self.wait_until(
            job, lambda shown: shown["JobState"] in ended, f"the end of job {job}", timeout_s
        )

    def wait_until(
        self, job: int, condition: Callable[[dict[str, str]], bool], what: str, timeout_s: float
    ) -> dict[str, str]:
        """Until a condition holds for what SLURM knows of a job; that."""
        deadline = time.monotonic() + timeout_s
        while True:
            # A controller that is busy may not answer once.
            with contextlib.suppress(AssertionError, subprocess.TimeoutExpired):
                shown = self.show(job)
                if condition(shown):
                    return shown
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(_LOOK_S)

    def _is_ready(self) -> bool:
        for server in self._servers:
            assert server.poll() is None, f"a server has ended; see the logs in {self._folder}"
        asked = subprocess.run(
            self._nodes[0].command("sinfo", "--noheader", "--Node", "--format=%N %t"),
            env={**os.environ, **self.environment},
            capture_output=True,
            text=True,
            check=False,
        )
        return sorted(asked.stdout.splitlines()) == [f"{node.name} idle" for node in self._nodes]

    def _munge_options(self) -> list[str]:
        key = self._folder / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o600)
        files = {name: self._folder / f"munge.{name}" for name in ("log", "pid", "seed", "socket")}
        return [
            f"--key-file={key}",
            f"--socket={files['socket']}",
            f"--log-file={files['log']}",
            f"--pid-file={files['pid']}",
            f"--seed-file={files['seed']}",
        ]

    def _write_settings(self) -> None:
        first = self._nodes[0]
        host = os.uname().nodename
        for name in ("state", *(f"spool.{node.name}" for node in self._nodes)):
            (self._folder / name).mkdir()
        nodes = "".join(
            f"NodeName={node.name} NodeHostname={host} NodeAddr={node.address} Port=17001 "
            "CPUs=2 RealMemory=2000\n"
            for node in self._nodes
        )
        names = ",".join(node.name for node in self._nodes)
        # Nothing uses it; to find out which one there is fails where /sys has none.
        (self._folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\n")
        (self._folder / "slurm.conf").write_text(
            f"""ClusterName=tests
SlurmctldHost={host}({first.address})
SlurmctldPort=17000
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={self._folder}/munge.socket,cred_expire={REQUEUE_S}
StateSaveLocation={self._folder}/state
SlurmctldPidFile={self._folder}/slurmctld.pid
SlurmdPidFile={self._folder}/slurmd.%n.pid
SlurmdSpoolDir={self._folder}/spool.%n
SlurmctldLogFile={self._folder}/slurmctld.log
SlurmdLogFile={self._folder}/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
SchedulerParameters=sched_interval=2,bf_interval=2
ReturnToService=2
MpiDefault=none
MessageTimeout=60
BatchStartTimeout=120
MinJobAge=3600
{nodes}PartitionName=debug Nodes={names} Default=YES MaxTime=INFINITE State=UP
"""
        )

    def _spawn(self, name: str, command: Sequence[str]) -> None:
        with (self._folder / f"{name}.out").open("wb") as log:
            self._servers.append(
                subprocess.Popen(
                    command,
                    env={**os.environ, **self.environment, "PATH": _PATH},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                )
            )
