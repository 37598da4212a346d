"""Ray for tests: one node or several on this machine, which can be killed."""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import ray
from ray.cluster_utils import Cluster

from tests.ports import free_port
from tests.processes import wait_for

#: A node that is killed is known to be dead after some 2 s, not 15; one that is slow is not.
HEALTH = {
    "health_check_initial_delay_ms": 10_000,
    "health_check_period_ms": 400,
    "health_check_timeout_ms": 10_000,
    "health_check_failure_threshold": 4,
}
#: Bytes of each node's object store.
STORE_BYTES = 128 << 20
START_S = 240.0
#: To start a node.
ATTEMPTS = 3
#: In the command of a process in which tasks run.
_WORKER = "cerebro.backend.worker"
#: What `ray start` has another name for.
_GRPC = "metrics_agent_port"
#: A node that sees files otherwise: mounts something, and becomes `ray start`.
_APART = """
import json, subprocess, sys
for words in json.loads(sys.argv[1]):
    subprocess.run(["mount", *words], check=True)
sys.argv = ["ray", "start", *sys.argv[2:]]
from ray.scripts.scripts import main
main()
"""
QUIET: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}


@contextlib.contextmanager
def kept_process() -> Iterator[None]:
    """What Ray changes in this process is undone: variables, and what happens at signals."""
    before = dict(os.environ)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        os.environ.clear()
        os.environ.update(before)


@contextlib.contextmanager
def own_folder() -> Iterator[str]:
    """A place for Ray's files; short, for the sake of the sockets in it."""
    folder = tempfile.mkdtemp(prefix="cr-", dir="/tmp")
    # Whatever folder it is given, Ray notes there which cluster came last.
    Path("/tmp/ray").mkdir(exist_ok=True)
    try:
        with kept_process():
            yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


class Nodes:
    """A head, and nodes, all on this machine.

    Args:
        cpus: Of the head: so many workers fit there.
    """

    def __init__(self, folder: str, cpus: int = 0) -> None:
        self._cluster = Cluster()
        head = {"temp_dir": folder, "include_dashboard": False, "_system_config": HEALTH}
        self._start(ATTEMPTS, num_cpus=cpus, **head)
        self.address: str = self._cluster.address
        #: Those that were not removed, and their cores, by number.
        self._nodes: dict[int, tuple[Any, int]] = {}
        self._numbers = itertools.count()
        self._blind: list[subprocess.Popen[bytes]] = []

    def add(self, cpus: int = 1, **resources: float) -> int:
        """Another node; its number."""
        node = self._start(ATTEMPTS, num_cpus=cpus, resources=resources)
        number = next(self._numbers)
        self._nodes[number] = node, cpus
        return number

    def add_blind(self, hidden: Path, cpus: int = 1) -> subprocess.Popen[bytes]:
        """Another node, which finds an empty folder in the place of this one; needs root."""
        return self._add_apart([["-t", "tmpfs", "none", str(hidden)]], cpus)

    def add_reading(self, folder: Path, cpus: int = 1) -> subprocess.Popen[bytes]:
        """Another node, which cannot write into this folder; needs root."""
        path = str(folder)
        return self._add_apart([["--bind", path, path], ["-o", "remount,ro,bind", path]], cpus)

    def _add_apart(
        self, mounts: list[list[str]], cpus: int, attempts: int = ATTEMPTS
    ) -> subprocess.Popen[bytes]:
        options = [f"--address={self.address}", f"--num-cpus={cpus}", "--block"]
        options += [f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats"]
        ports = {name.replace("_", "-"): port for name, port in _ports().items()}
        ports["dashboard-agent-grpc-port"] = ports.pop(_GRPC.replace("_", "-"))
        options += [f"--{name}={port}" for name, port in ports.items()]
        command = [sys.executable, "-c", _APART, json.dumps(mounts), *options]
        isolated = ["unshare", "--mount", "--propagation", "private", *command]
        before = self._alive()
        process = subprocess.Popen(isolated, stdin=subprocess.DEVNULL)
        self._blind.append(process)
        wait_for(
            lambda: process.poll() is not None or self._alive() - before, "another node", START_S
        )
        if process.poll() is not None and attempts > 1:
            self.end(process)
            return self._add_apart(mounts, cpus, attempts - 1)
        assert process.poll() is None, "another node has ended"
        return process

    def _alive(self) -> set[str]:
        return {node["NodeID"] for node in ray.nodes() if node["Alive"]}

    @property
    def numbers(self) -> list[int]:
        """Those of the nodes that run."""
        return [number for number in self._nodes if self._raylet(number).poll() is None]

    def raylet(self, number: int) -> psutil.Process:
        """The process that all others of a node depend on."""
        return psutil.Process(self._raylet(number).pid)

    def remove(self, number: int) -> None:
        """Kill all processes of a node at once."""
        self._cluster.remove_node(self._nodes.pop(number)[0], allow_graceful=False)

    def renew(self) -> int:
        """Another node in the place of each whose raylet was killed; how many there are."""
        dead = {number: self._nodes[number][1] for number in self._nodes.keys() - set(self.numbers)}
        for number, cpus in dead.items():
            self.remove(number)
            self.add(cpus)
        return len(dead)

    def busy(self) -> list[psutil.Process]:
        """The raylets of nodes that have workers."""
        raylets = map(self.raylet, self.numbers)
        return [raylet for raylet in raylets if _agents_below(raylet)]

    def agents(self) -> list[psutil.Process]:
        """The actors of workers, on all nodes."""
        return [agent for number in self.numbers for agent in _agents_below(self.raylet(number))]

    def workers(self) -> list[psutil.Process]:
        """The processes in which tasks run, on all nodes."""
        found = [child for agent in self.agents() for child in _children(agent)]
        return [child for child in found if _WORKER in _command(child)]

    def _start(self, attempts: int, **options: Any) -> Any:
        """On a busy machine Ray gives up on nodes that take long to start."""
        before = psutil.Process().children()
        try:
            return self._cluster.add_node(**options, **_common())
        except Exception:
            for child in psutil.Process().children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if child not in before:
                        child.kill()
            if attempts <= 1:
                raise
            if "temp_dir" in options:
                # What there is of this head is of no use.
                self._cluster = Cluster()
            return self._start(attempts - 1, **options)

    def _raylet(self, number: int) -> Any:
        (info,) = self._nodes[number][0].all_processes["raylet"]
        return info.process

    def end(self, process: subprocess.Popen[bytes]) -> None:
        """Kill a node that sees files otherwise."""
        self._blind.remove(process)
        with contextlib.suppress(psutil.NoSuchProcess):
            for child in psutil.Process(process.pid).children(recursive=True):
                child.kill()
        process.kill()
        process.wait()

    def stop(self) -> None:
        for process in list(self._blind):
            self.end(process)
        self._cluster.shutdown()


def _common() -> dict[str, Any]:
    return {"object_store_memory": STORE_BYTES, **_ports()}


def _ports() -> dict[str, int]:
    """Ports that are known in advance: a node waits 15 s at most for those it has to ask for."""
    names = ("metrics_export_port", "runtime_env_agent_port", "dashboard_agent_listen_port")
    return {name: free_port() for name in (*names, _GRPC)}


@contextlib.contextmanager
def nodes(*cpus: int, head: int = 0) -> Iterator[Nodes]:
    """A cluster whose nodes have so many cores; this process is not connected to it."""
    with own_folder() as folder:
        found = Nodes(folder, head)
        try:
            for each in cpus:
                found.add(each)
            yield found
        finally:
            with contextlib.suppress(Exception):
                ray.shutdown()
            found.stop()


@contextlib.contextmanager
def connected(address: str) -> Iterator[None]:
    """This process as a driver of a cluster."""
    with kept_process():
        ray.init(address=address, **QUIET)
        try:
            yield
        finally:
            ray.shutdown()


@contextlib.contextmanager
def only(
    cluster: Nodes, *, cpus: int = 1, blind: Path | None = None, reading: Path | None = None
) -> Iterator[None]:
    """The only node with any cores; in the end Ray knows that it is gone."""
    if blind is None and reading is None:
        number = cluster.add(cpus)
        remove = functools.partial(cluster.remove, number)
    else:
        process = cluster.add_blind(blind) if blind else cluster.add_reading(reading or Path())
        remove = functools.partial(cluster.end, process)
    try:
        yield
    finally:
        remove()
        wait_until_alone()


def wait_until_alone() -> None:
    """Ray notices after a moment that a node is gone."""
    wait_for(lambda: not ray.cluster_resources().get("CPU"), "no node with any core", START_S)


@contextlib.contextmanager
def machine(cpus: int = 4) -> Iterator[None]:
    """Ray on this machine alone, initialised for this process."""
    with nodes(head=cpus) as found, connected(found.address):
        yield


def _agents_below(raylet: psutil.Process) -> list[psutil.Process]:
    return [child for child in _children(raylet) if _command(child).startswith("ray::RayWorker")]


def _children(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children()
    except psutil.NoSuchProcess:
        return []


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""
