"""Ray on several machines for tests: a head and nodes, each in a network namespace of its own."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from tests.cluster.namespaces import Machine
from tests.cluster.rays import ATTEMPTS, START_S, STORE_BYTES
from tests.processes import wait_for

PORT = 26379
#: Known in advance: a node waits for those that it has to ask its processes for.
_PORTS = {
    "metrics-export-port": 26380,
    "runtime-env-agent-port": 26381,
    "dashboard-agent-listen-port": 26382,
    "dashboard-agent-grpc-port": 26383,
}
#: A node that does not answer for some 6 s is dead.
_HEALTH = {
    "health_check_initial_delay_ms": 10_000,
    "health_check_period_ms": 500,
    "health_check_timeout_ms": 1500,
    "health_check_failure_threshold": 4,
}
#: The last thing that `ray start` says.
_UP = "Ray runtime started"


class Apart:
    """A cluster with token authentication; its head has no room for workers.

    Args:
        folder: Where logs and the token are kept.
    """

    def __init__(self, folder: Path, head: Machine) -> None:
        self._folder = folder
        self.head = head
        self.address = f"{head.address}:{PORT}"
        self.token = secrets.token_hex(32)
        #: What all that has to do with Ray finds in its environment.
        self.environment = self.environment_with(self.token, "token")
        self._head_options = [
            *("--head", f"--port={PORT}", "--num-cpus=0", "--no-monitor"),
            *("--include-dashboard=false", f"--system-config={json.dumps(_HEALTH)}"),
        ]

    def environment_with(self, token: str, name: str) -> dict[str, str | None]:
        """For whoever has this token, in a file of that name."""
        path = self._folder / name
        path.touch(mode=0o600)
        path.write_text(token)
        return {
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": None,
            "RAY_AUTH_TOKEN_PATH": str(path),
            "RAY_ADDRESS": None,
        }

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Its head is there."""
        with self._started(self.head, self._head_options):
            yield

    @contextlib.contextmanager
    def node(self, machine: Machine) -> Iterator[None]:
        """A node with room for one worker is there."""
        with self._started(machine, [f"--address={self.address}", "--num-cpus=1"]):
            yield

    @contextlib.contextmanager
    def _started(self, machine: Machine, options: list[str]) -> Iterator[None]:
        # Short, for the sake of the sockets in it.
        place = tempfile.mkdtemp(prefix="cr-", dir="/tmp")
        log = self._folder / f"{machine.name}.log"
        processes: list[subprocess.Popen[bytes]] = []

        def is_up() -> bool:
            """Or has ended: on a busy machine Ray gives up on processes that take long to start."""
            return processes[-1].poll() is not None or _UP in log.read_text(errors="replace")

        try:
            while len(processes) < ATTEMPTS and all(each.poll() is not None for each in processes):
                machine.end_all()
                processes.append(self._start(machine, [*options, f"--temp-dir={place}"], log))
                wait_for(is_up, f"Ray on {machine.name}; see {log}", START_S)
            assert processes[-1].poll() is None, log.read_text(errors="replace")
            yield
        finally:
            machine.end_all()
            for process in processes:
                process.wait()
            shutil.rmtree(place, ignore_errors=True)

    def _start(self, machine: Machine, options: list[str], log: Path) -> subprocess.Popen[bytes]:
        command = [
            *(sys.executable, "-m", "ray.scripts.scripts", "start", *options, "--block"),
            *(f"--node-ip-address={machine.address}", f"--object-store-memory={STORE_BYTES}"),
            *("--disable-usage-stats", "--include-log-monitor=false"),
            *(f"--{name}={port}" for name, port in _PORTS.items()),
        ]
        environment = {**os.environ, **self.environment}
        with log.open("wb") as file:
            return subprocess.Popen(
                machine.command(*command),
                env={name: value for name, value in environment.items() if value is not None},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
