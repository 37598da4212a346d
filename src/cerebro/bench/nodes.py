"""The processes of one setting: one for each node, started, watched and ended together."""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from cerebro.bench.subject import Subject
from cerebro.bench.sweep import Setting
from cerebro.storage import layout
from cerebro.track.monitor.monitor import monitor_command

#: After one node has failed, or the first is through, the others may take so long to end.
_GRACE_S = 30.0
#: How often whoever waits is told.
_PULSE_S = 0.25
#: Ports that systems do not hand out by themselves.
_PORTS = range(20000, 32000)
_STOP_S = 40.0
#: What a run prints of a trial that failed: its number, params, and why.
_TRIAL = re.compile(r"\s+t\d+ \[.*?\] (.*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where nodes are and what is left there."""

    #: Of the setting: logs, samples.
    folder: Path
    #: Of its run.
    run: Path
    #: Machines to reach by ssh; none: all nodes are processes of this one.
    hosts: tuple[str, ...] = ()
    interval_s: float = 1.0

    def node(self, number: int) -> Path:
        return self.folder / f"node{number}"


def node_command(
    subject: Subject, setting: Setting, place: Place, node: int, master: str
) -> list[str]:
    """What runs on a node: the training, below a monitor.

    >>> subject = Subject(path=Path("/a.yaml"), is_recipe=True)
    >>> place = Place(folder=Path("/out/s"), run=Path("/out/r"))
    >>> command = node_command(subject, Setting(nodes=2), place, 1, "127.0.0.1:5000")
    >>> shlex.join(command).partition(" -- ")[2].partition(" -m ")[2]
    'cerebro run /a.yaml parallel=ddp output_dir=/out/r --quiet -n 2 -np 1 -nr 1 \
--master 127.0.0.1:5000'
    """
    ranks = ["-n", str(setting.nodes), "-np", str(setting.procs), "-nr", str(node)]
    flags = [*ranks, "--master", master] if setting.ranks > 1 else []
    host = place.hosts[node] if place.hosts else f"node{node}"
    command = [
        *monitor_command(place.node(node), interval_s=place.interval_s, host=host),
        *("--lifeline", "--"),
        *(sys.executable, "-m", "cerebro", "run", str(subject.path)),
        *(*subject.overrides(setting, place.run), "--quiet", *flags),
    ]
    if not place.hosts:
        return command
    # On a disk of its own there may be samples of the setting's last run.
    return _on(host, command, without=place.node(node) / layout.RESOURCES)


def _on(host: str, command: Sequence[str], *, without: Path | None = None) -> list[str]:
    """A command that runs in this directory of another machine, `without` a file there."""
    removed = [] if without is None else [shlex.join(["rm", "-f", str(without)])]
    steps = [f"cd {shlex.quote(os.getcwd())}", *removed, f"exec {shlex.join(command)}"]
    return ["ssh", "-o", "BatchMode=yes", host, " && ".join(steps)]


def are_simulated(hosts: Sequence[str]) -> bool:
    """Whether nodes share a machine.

    >>> are_simulated([]), are_simulated(["a", "a"]), are_simulated(["a", "b"])
    (True, True, False)
    """
    return len(set(hosts)) < max(1, len(hosts))


def fetch_samples(place: Place, nodes: int) -> None:
    """Copy what nodes have sampled on disks of their own; one that cannot be reached has none."""
    for number, host in enumerate(place.hosts[:nodes]):
        path = place.node(number) / layout.RESOURCES
        if path.exists():
            continue
        with contextlib.suppress(subprocess.SubprocessError):
            command = _on(host, ["cat", str(path)])
            fetched = subprocess.run(
                command, stdin=subprocess.DEVNULL, capture_output=True, check=True, timeout=_STOP_S
            )
            path.write_bytes(fetched.stdout)


def master_address(place: Place) -> str:
    """Where the ranks of a setting meet."""
    if place.hosts:
        # Nobody here knows which are free there; two settings in a row take different ones.
        host = place.hosts[0].rpartition("@")[2]
        return f"{host}:{random.choice(_PORTS)}"  # noqa: S311
    while True:
        port = random.choice(_PORTS)  # noqa: S311
        with socket.socket() as free, contextlib.suppress(OSError):
            free.bind(("127.0.0.1", port))
            return f"127.0.0.1:{port}"


class Nodes:
    """All nodes of one setting; ended, whatever happens, when the block is left."""

    def __init__(self, commands: Sequence[Sequence[str]], logs: Sequence[Path]) -> None:
        self._commands = commands
        self._logs = logs
        self._processes: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Nodes:
        try:
            for command, log in zip(self._commands, self._logs, strict=True):
                log.parent.mkdir(parents=True, exist_ok=True)
                with log.open("wb") as output:
                    self._processes.append(
                        subprocess.Popen(
                            command,
                            # Its end is the end of what runs there, should we be killed.
                            stdin=subprocess.PIPE,
                            stdout=output,
                            stderr=subprocess.STDOUT,
                            start_new_session=True,
                        )
                    )
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop()

    def wait(self, told: Callable[[], None]) -> list[int]:
        """Exit codes, once all have ended; `told` is called every now and then."""
        deadline = float("inf")
        while any(code is None for code in self._poll()):
            codes = self._poll()
            if codes[0] is not None or any(codes):
                deadline = min(deadline, time.monotonic() + _GRACE_S)
            if time.monotonic() > deadline:
                self._stop()
                break
            told()
            # The last one may have ended meanwhile.
            for process in [p for p in self._processes if p.poll() is None][:1]:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(_PULSE_S)
        return [process.wait() for process in self._processes]

    def _poll(self) -> list[int | None]:
        return [process.poll() for process in self._processes]

    def _stop(self) -> None:
        """Close the pipes: the monitor ends its command, with time to save, and then itself."""
        for process in self._processes:
            if process.stdin is not None:
                with contextlib.suppress(OSError):
                    process.stdin.close()
        deadline = time.monotonic() + _STOP_S
        for process in self._processes:
            try:
                process.wait(max(0.0, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()


def failure_of(logs: Sequence[Path], codes: Sequence[int]) -> str:
    """Why a setting failed, from what its nodes printed.

    >>> failure_of([], [])
    'it ended without a word'
    """
    for number, (log, code) in enumerate(zip(logs, codes, strict=True)):
        if code == 0:
            continue
        lines = [line for line in _lines(log) if line.strip()]
        errors = [line for line in lines if line.startswith("error: ")]
        told = (errors or lines or ["it ended without a word"])[-1].removeprefix("error: ")
        trial = next((found[1] for line in lines if (found := _TRIAL.match(line))), "")
        told = f"{told} The first {trial}" if trial else told
        return f"node {number} ended with {code}: {told.strip():.300} ({log})"
    return "it ended without a word"


def _lines(log: Path) -> list[str]:
    return log.read_text(encoding="utf-8", errors="replace").splitlines() if log.exists() else []
