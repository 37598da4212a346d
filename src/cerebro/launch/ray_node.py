"""Ray on this machine as one node of a cluster: started and ended by whoever holds it."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

import psutil

from cerebro.backend.gang.rendezvous import split_address
from cerebro.errors import WorkerError
from cerebro.launch.processes import choose_ports, is_alive, wait_until

#: How often Ray is started on a node before it is given up: on a busy machine it fails now and then
#: because a process of its own is not there within 15 s.
MOST_STARTS = 5
#: How long that may take, and until all of it has ended.
READY_S = 300.0
GRACE_S = 15.0
_LOG, _LOG_LINES = "start.log", 5
_LOOK_S = 0.2
#: In the foreground, with all that it starts and nothing that is not needed; nobody outside is told
#: anything.
_ALWAYS = ("--block", "--disable-usage-stats", "--include-log-monitor=false")
#: Another job on this machine may have the usual ones.
_PORTS, _HEAD_PORTS = ("dashboard-agent-listen",), ("ray-client-server",)
#: The last thing that `ray start` says.
_UP = "Ray runtime started"
_ENVIRONMENT = {
    # When it is told to end, the run has ended: nothing has to move elsewhere first.
    "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0",
}

logger = logging.getLogger("cerebro.launch")


class RayNode:
    """Ray's processes on this machine, in a directory of their own that goes with them.

    Args:
        address: Where the head of the cluster listens, HOST:PORT.
        own: The address of this machine that the others see.
        head: Whether this machine is the head.
        resources: Options of `ray start` that say what the node has.
    """

    def __init__(
        self, address: str, own: str, *, head: bool, resources: Sequence[str] = ()
    ) -> None:
        # Ray keeps sockets below it, whose names must be short.
        self._folder = Path(tempfile.mkdtemp(prefix="cerebro-ray-", dir="/tmp"))
        place = [f"--address={address}"]
        if head:
            place = ["--head", f"--port={split_address(address)[1]}"]
            place += ["--include-dashboard=false", "--no-monitor"]
        ports = choose_ports((*_PORTS, *(_HEAD_PORTS if head else ())))
        self._command = [
            *(sys.executable, "-m", "cerebro.launch.ray_start", *_ALWAYS, *place),
            *(f"--{name}-port={port}" for name, port in ports.items()),
            f"--node-ip-address={own}",
            f"--temp-dir={self._folder}",
            *resources,
        ]
        self._starts = 0
        self._process = self._start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()

    @property
    def is_up(self) -> bool:
        """Whether it is part of the cluster."""
        return self._process.poll() is None and _UP in self._read_log()

    def keep_up(self) -> None:
        """Start it again if it has ended; WorkerError if that was done too often."""
        if self._process.poll() is None:
            return
        if self._starts == MOST_STARTS:
            raise WorkerError(f"Ray does not run on {socket.gethostname()}: {self.said()}")
        logger.warning("Ray has ended on %s and starts again.", socket.gethostname())
        self._end_processes()
        self._process = self._start()

    def wait_until_up(self) -> None:
        """Return once it is part of the cluster."""
        deadline = time.monotonic() + READY_S
        while not self.is_up:
            self.keep_up()
            if time.monotonic() > deadline:
                raise WorkerError(f"Ray does not start on {socket.gethostname()}: {self.said()}")
            time.sleep(_LOOK_S)

    def end(self) -> None:
        """End every process of it, and nothing else."""
        self._end_processes()
        shutil.rmtree(self._folder, ignore_errors=True)

    def said(self) -> str:
        """The end of what `ray start` has written."""
        lines = [line.strip() for line in self._read_log().splitlines() if line.strip()]
        return " / ".join(lines[-_LOG_LINES:]) or "it has written nothing"

    def _read_log(self) -> str:
        with contextlib.suppress(OSError):
            return (self._folder / _LOG).read_text(errors="replace")
        return ""

    def _start(self) -> subprocess.Popen[bytes]:
        self._starts += 1
        with (self._folder / _LOG).open("wb") as log:
            return subprocess.Popen(
                self._command,
                env={**os.environ, **_ENVIRONMENT},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                # Ctrl-C in a terminal is for the run alone.
                start_new_session=True,
            )

    def _end_processes(self) -> None:
        family: list[psutil.Process] = []
        with contextlib.suppress(psutil.NoSuchProcess):
            family = psutil.Process(self._process.pid).children(recursive=True)
        with contextlib.suppress(ProcessLookupError):
            self._process.terminate()
        try:
            self._process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        for ending in (psutil.Process.terminate, psutil.Process.kill):
            for process in filter(is_alive, family):
                with contextlib.suppress(psutil.NoSuchProcess):
                    ending(process)
            if wait_until(lambda: not any(map(is_alive, family)), GRACE_S / 3):
                return


def is_listening(address: str) -> bool:
    """Whether somebody takes connections at an address.

    >>> with socket.create_server(("127.0.0.1", 0)) as server:
    ...     is_listening("127.0.0.1:%d" % server.getsockname()[1])
    True
    """
    host, port = split_address(address)
    with (
        contextlib.suppress(OSError),
        socket.create_connection((host.strip("[]"), port), timeout=1.0),
    ):
        return True
    return False


def read_resources(environ: Mapping[str, str]) -> list[str]:
    """What SLURM has given to a task of this node, as options of `ray start`.

    >>> read_resources({"SLURM_CPUS_ON_NODE": "16", "SLURM_GPUS_ON_NODE": "4"})
    ['--num-cpus=16', '--num-gpus=4']
    """
    cpus = environ.get("SLURM_CPUS_PER_TASK") or environ.get("SLURM_CPUS_ON_NODE", "")
    gpus = environ.get("SLURM_GPUS_ON_NODE", "")
    found = {"cpus": cpus, "gpus": gpus}
    return [f"--num-{name}={count}" for name, count in found.items() if count.isdigit()]
