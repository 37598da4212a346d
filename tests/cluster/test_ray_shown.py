"""The page on clusters: its lines make two machines a cluster, and its program runs there."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from cerebro.results import Result
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.cluster.namespaces import Machine, machines, why_not
from tests.test_docs import ROOT, blocks_of

pytestmark = [
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.skipif(why_not() is not None, reason=why_not() or ""),
]

PAGE = (ROOT / "docs" / "cluster.md").read_text(encoding="utf-8")
#: What the page calls the first machine, and the directory that both have.
ADDRESS, SHARED = "10.0.0.7", "/shared"
#: Ray gives up on processes of its own that take more than 30 s to start, as on a busy machine.
_ATTEMPTS = 3
#: A name, a home and a place for Ray's files of its own; then what was asked for.
_APART = 'hostname "$1" && mount --bind "$2" /tmp/ray && shift 2 && exec "$@"'


class Shell:
    """A shell on one of the machines; what it exports stays.

    Args:
        folder: Short, for the sake of Ray's sockets.
    """

    def __init__(self, machine: Machine, folder: Path) -> None:
        self._machine = machine
        self._ray, self._home = folder / "ray", folder / "home"
        for path in (self._ray, self._home):
            path.mkdir(parents=True)
        self._exports: list[str] = []

    def run(self, line: str, folder: Path) -> str:
        """What a line prints."""
        if line.startswith("export "):
            self._exports.append(line)
        done = self._do(line, folder)
        for _ in range(_ATTEMPTS - 1 if line.startswith("ray start") else 0):
            if done.returncode:
                self._machine.end_all()
                done = self._do(line, folder)
        assert done.returncode == 0, f"{line}\n{done.stdout[-6000:]}"
        return done.stdout

    def _do(self, line: str, folder: Path) -> subprocess.CompletedProcess[str]:
        script = "\n".join([*self._exports, line])
        isolated = ["unshare", "--mount", "--uts", "--propagation", "private"]
        apart = ["sh", "-c", _APART, "sh", self._machine.name, str(self._ray)]
        # No Ray that this process knows, and the programs of this environment.
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        return subprocess.run(
            self._machine.command(*isolated, *apart, "sh", "-ec", script),
            cwd=folder,
            env={**kept, "PATH": path, "HOME": str(self._home), "RAY_USAGE_STATS_ENABLED": "0"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )


#: What the page's own task lacks: nobody is done with everything before the other machine comes.
GATE = """
import pathlib
import socket
import time


def wait_for_both(self, model, optimizer, params, epoch):
    hosts = pathlib.Path("{place}")
    hosts.mkdir(exist_ok=True)
    (hosts / socket.gethostname()).touch()
    while len(list(hosts.iterdir())) < 2:
        time.sleep(0.05)


Digits.on_epoch_start = wait_for_both
"""


@pytest.fixture
def shells():
    """Two machines that think they have a way into the world, as Ray asks for its address by it."""
    Path("/tmp/ray").mkdir(exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="cr-", dir="/tmp"))
    try:
        with machines(["first", "second"]) as found:
            for each in found:
                way = ["route", "add", "default", "dev", f"{each.name}-eth"]
                subprocess.run(["ip", "-n", each.namespace, *way], check=True)
            yield {each.name: Shell(each, folder / each.name) for each in found}, found[0].address
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_the_lines_of_the_page_make_two_machines_a_cluster(shells, tmp_path):
    shell, address = shells
    page = PAGE.replace(ADDRESS, address).replace(SHARED, str(tmp_path / "shared"))
    (tmp_path / "shared").mkdir()
    blocks = [*blocks_of((ROOT / "README.md").read_text(encoding="utf-8")), *blocks_of(page)]
    files = {block.file: block.text for block in blocks if block.file}
    files["tasks.py"] += GATE.format(place=tmp_path / "shared" / "hosts")
    for name in ("program.py", "tasks.py"):
        (tmp_path / name).write_text(files[name] + "\n", encoding="utf-8")
    (lines,) = [block.text for block in blocks_of(page) if "ray start --head" in block.text]
    steps = re.findall(r"^(.*\S)\s+# (both|first|second)\b", lines, re.MULTILINE)
    assert len(steps) == len(lines.splitlines()) <= 10
    told = ""
    for line, where in steps:
        if not line.startswith("pip install"):
            for name in shell if where == "both" else [where]:
                told = shell[name].run(line, tmp_path)
    assert "val_accuracy" in told
    root = tmp_path / "shared/runs/digits"
    assert Result.open(root).is_finished
    hosts = {r["host"] for r in read(DirectoryStore(root)).records if r["type"] == "visit"}
    assert hosts == {"first", "second"}
