"""Runs settings one after the other, and remembers which are through."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from cerebro import __version__
from cerebro.bench.measurement import Measurement, read_measurement
from cerebro.bench.nodes import (
    Nodes,
    Place,
    failure_of,
    fetch_samples,
    master_address,
    node_command,
)
from cerebro.bench.subject import Subject
from cerebro.bench.sweep import Setting
from cerebro.config.machine import available_cores
from cerebro.errors import UsageError
from cerebro.storage import layout
from cerebro.track.writing import replace

_TOLD = "setting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """A directory with the runs of a benchmark; what is done is not done again.

    ::

        <out>/bench.json                     what was asked for, and on which machine
             /settings/<setting>/setting.json  node0/{output.log,resources.csv,command.json}
             /runs/<setting>/                an ordinary run directory
             /report.html  csv/  png/
    """

    subject: Subject
    out: Path
    hosts: tuple[str, ...] = ()
    interval_s: float = 1.0

    @property
    def digest(self) -> str:
        """Changes when what is measured does, or how."""
        words = [self.subject.digest, f"{self.interval_s:g}", __version__]
        words += self.hosts or (_processor(), str(available_cores()))
        return hashlib.sha256("\0".join(words).encode()).hexdigest()

    def place(self, setting: Setting) -> Place:
        return Place(
            folder=self.out / "settings" / setting.key,
            run=self.out / "runs" / setting.key,
            hosts=self.hosts,
            interval_s=self.interval_s,
        )

    def told(self, setting: Setting) -> dict[str, Any]:
        """What `setting.json` says; nothing if there is none, or it is of another benchmark."""
        path = self.place(setting).folder / _TOLD
        try:
            found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if found.get("digest") == self.digest else {}

    def is_done(self, setting: Setting) -> bool:
        return self.told(setting).get("status") == "done"

    def run(self, setting: Setting, told: Callable[[], None] = lambda: None) -> dict[str, Any]:
        """Run a setting from its beginning: a training that was interrupted has no time to tell."""
        place = self.place(setting)
        for left_over in (place.folder, place.run):
            shutil.rmtree(left_over, ignore_errors=True)
        place.folder.mkdir(parents=True)
        place.run.parent.mkdir(parents=True, exist_ok=True)
        master = master_address(place)
        numbers = range(setting.nodes)
        commands = [node_command(self.subject, setting, place, n, master) for n in numbers]
        logs = [place.node(number) / "output.log" for number in numbers]
        with Nodes(commands, logs) as nodes:
            codes = nodes.wait(told)
        fetch_samples(place, setting.nodes)
        found = self._outcome(place, codes, logs)
        found |= {"digest": self.digest, "commands": commands}
        _write_json(place.folder / _TOLD, found)
        return found

    def measure(self, settings: Sequence[Setting]) -> list[Measurement]:
        """What is known of settings that were run, whether they succeeded or not."""
        found = []
        for setting in settings:
            told = self.told(setting)
            if told:
                place = self.place(setting)
                nodes = [
                    (self._name(number), place.node(number) / layout.RESOURCES)
                    for number in range(setting.nodes)
                ]
                found.append(read_measurement(setting, told, place.run, nodes))
        return found

    def describe(self, settings: Sequence[Setting]) -> dict[str, Any]:
        """Write `bench.json`; what it says."""
        about = {
            "file": str(self.subject.path),
            "overrides": list(self.subject.given),
            "hosts": list(self.hosts),
            "machine": machine(),
            "cerebro": __version__,
            "settings": [{**asdict(setting), "key": setting.key} for setting in settings],
        }
        self.out.mkdir(parents=True, exist_ok=True)
        _write_json(self.out / "bench.json", about)
        return about

    def _name(self, node: int) -> str:
        return self.hosts[node] if self.hosts else f"node {node}"

    def _outcome(self, place: Place, codes: Sequence[int], logs: Sequence[Path]) -> dict[str, Any]:
        try:
            timed = json.loads((place.node(0) / "command.json").read_text(encoding="utf-8"))
        except (OSError, ValueError):
            timed = {"began": time.time(), "seconds": 0.0}
        found = {"status": "done", "codes": list(codes), **timed}
        if any(codes):
            return found | {"status": "failed", "error": failure_of(logs, codes)}
        if not (place.run / layout.TRACE).exists():
            return found | {"status": "failed", "error": _lack(place)}
        return found


def _lack(place: Place) -> str:
    """Why there is nothing to read of a run that ended well."""
    where = f" Is {place.hosts[0]}'s disk not this machine's, too?" if place.hosts else ""
    return f"it left no {place.run / layout.TRACE}.{where}"


def machine() -> dict[str, Any]:
    """The machine that this is.

    >>> machine()["cores"] >= 1
    True
    """
    return {
        "host": socket.gethostname(),
        "cores": available_cores(),
        "processor": _processor(),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": f"{platform.system()} {platform.release()}",
        "python": sys.version.split()[0],
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as file:
            names = [line.partition(":")[2].strip() for line in file if line.startswith("model na")]
    except OSError:
        names = []
    return names[0] if names else platform.machine()


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    replace(path, json.dumps(value, indent=1, default=str) + "\n")


def check_hosts(hosts: Sequence[str], nodes: Sequence[int]) -> None:
    """As many hosts as the largest setting has nodes, or none."""
    if hosts and len(hosts) < max(nodes):
        raise UsageError(
            f"`hosts >= nodes` must hold, but got {len(hosts)} hosts for {max(nodes)} nodes. Name "
            "more hosts, or leave --hosts out: then nodes are processes of this machine."
        )
    if 1 < len(set(hosts)) < len(hosts):
        raise UsageError(
            f"hosts must be all different, or one machine that stands for all of them, but got "
            f"{','.join(hosts)}. Nodes that share a machine cannot be compared with others."
        )
