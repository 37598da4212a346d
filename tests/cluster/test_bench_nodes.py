"""`cerebro bench` with several nodes: real ranks, on this machine or by way of ssh."""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pytest

import cerebro
from tests.cluster.namespaces import machines, why_not
from tests.integration.project import environment

EXPERIMENT = """\
name: bench
task: tests.tasks:Perceptron
data: data
epochs: 2
batch_size: 32
metric: val_loss
mode: min
space:
  lr: [0.01]
"""
#: Runs here what it should run there; the machine of another name has its own disk for samples.
SSH = """\
#!/bin/sh
shift 2
if [ "$1" = localhost ]; then
    exec sh -c "$2"
fi
exec sh -c "$(printf %s "$2" | sed s,/out/settings/,/elsewhere/,g)"
"""
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(256, 64)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    cerebro.data.from_arrays(
        tmp_path / "data", train={"x": x, "y": y}, shards=2, validation=0.25, seed=0
    )
    (tmp_path / "experiment.yaml").write_text(EXPERIMENT)
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(SSH)
    ssh.chmod(0o755)
    return tmp_path


@pytest.fixture
def prefix() -> Iterator[list[str]]:
    """Of a command that runs where nobody else has ports, if there can be such a place."""
    if why_not() is not None:
        yield []
        return
    with machines(["bench"]) as (machine,):
        yield machine.command()


def bench(prefix: Sequence[str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    variables = {
        **environment(),
        "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
    }
    command = ("bench", "experiment.yaml", "--interval", "0.2", "--out", "out", *arguments)
    return subprocess.run(
        [*prefix, sys.executable, "-m", "cerebro", *command],
        cwd=folder,
        env=variables,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


def rows(folder: Path, table: str) -> list[dict[str, str]]:
    text = (folder / "out" / "csv" / f"{table}.csv").read_text(encoding="utf-8")
    return list(csv.DictReader(text.splitlines()))


def test_two_simulated_nodes_are_compared_with_one_at_both_rules(
    prefix: list[str], folder: Path
) -> None:
    done = bench(prefix, folder, "--nodes", "1,2")
    assert done.returncode == 0, done.stdout + done.stderr
    found = {row["setting"]: row for row in rows(folder, "times")}
    assert list(found) == ["n1-p1-b32-r0", "n2-p1-b32-global-r0", "n2-p1-b32-rank-r0"]
    one, shared, each = found.values()
    assert int(shared["steps"]) == int(one["steps"])
    assert int(each["steps"]) < int(one["steps"])
    assert float(one["communication"]) == 0.0 < float(shared["communication"])
    # The same steps on the same rows give the same model.
    assert float(shared["best"]) == pytest.approx(float(one["best"]), rel=1e-3)
    nodes = {(row["setting"], row["node"]) for row in rows(folder, "resources")}
    assert ("n2-p1-b32-global-r0", "node 1") in nodes
    assert "Simulated: all nodes were on one machine" in done.stdout
    page = (folder / "out" / "report.html").read_text(encoding="utf-8")
    assert "Nodes and processes at a fixed batch for each process" in page


def test_nodes_on_named_hosts_are_started_by_ssh(prefix: list[str], folder: Path) -> None:
    # Of a run before, which this machine cannot see.
    left_over = folder / "elsewhere" / "n2-p1-b32-global-r0" / "node1" / "resources.csv"
    left_over.parent.mkdir(parents=True)
    left_over.write_text("1.0,of another run,cpu/tree,99.0\n")
    hosts = ("--hosts", "localhost,another")
    done = bench(prefix, folder, "--nodes", "2", *hosts, "--batch", "global")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Simulated" not in done.stdout
    assert left_over.exists()
    samples = folder / "out" / "settings" / "n2-p1-b32-global-r0" / "node1" / "resources.csv"
    assert ",another,cpu/tree," in samples.read_text()
    assert "of another run" not in samples.read_text()
    assert {row["node"] for row in rows(folder, "resources")} == {"localhost", "another"}
    assert "missing" not in done.stdout
