"""Model selection over the nodes of a SLURM job: Ray over the allocation, on a real SLURM."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.namespaces import Machine, machines
from tests.cluster.ranks import cerebro, digest, make_project, visits_of
from tests.cluster.slurm import BEFORE_S, SlurmCluster, why_no_slurm
from tests.processes import hold, wait_for

pytest.importorskip("ray")
pytestmark = [
    pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm())),
    pytest.mark.timeout(1800),
]

SEARCH: dict[str, Any] = {
    "parallel": "mop",
    "space": {"lr": [0.001, 0.01, 0.1, 0.3]},
    "epochs": 4,
    "stack": False,
}


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[Machine]]:
    with machines(["n1", "n2"], "10.79.0") as found:
        yield found


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, nodes: list[Machine]
) -> Iterator[SlurmCluster]:
    found = SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def launch(cluster: SlurmCluster, experiment: Path, *options: str) -> int:
    """The number of a job that `cerebro launch slurm` has handed in."""
    words = ("launch", "slurm", experiment.name, "--on", "ray", "--nodes", "2", *options)
    return int(cluster.run(*cerebro(*words), cwd=experiment.parent).split()[1])


def read_log(experiment: Path, job: int) -> str:
    path = experiment.parent / "logs" / f"experiment-{job}.out"
    return path.read_text(errors="replace") if path.exists() else ""


def processes_in(nodes: list[Machine]) -> list[str]:
    """Command lines of what runs on the nodes beside SLURM itself."""
    pids = [
        pid
        for node in nodes
        for pid in subprocess.run(
            ["ip", "netns", "pids", node.namespace], capture_output=True, text=True, check=True
        ).stdout.split()
    ]
    lines = [_command_line(pid) for pid in pids]
    return [line for line in lines if "ray" in line or "cerebro" in line]


def _command_line(pid: str) -> str:
    try:
        return Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def reference(folder: Path) -> str:
    """What the same search finds in one process."""
    experiment = make_project(folder, **SEARCH)
    subprocess.run(
        cerebro("run", experiment, "backend=inline"), check=True, capture_output=True, timeout=300
    )
    return digest(experiment)


def test_a_search_over_two_nodes_that_hits_its_limit_goes_on_and_ends_as_if_it_had_not(
    cluster, nodes, tmp_path
):
    experiment = make_project(tmp_path / "cut", **SEARCH)
    gate = hold(experiment.parent, 1)
    job = launch(cluster, experiment, "--time", "30", "--signal-before", str(BEFORE_S))
    wait_for(lambda: "Ray has 2 nodes" in read_log(experiment, job), "Ray on both nodes", 600.0)
    wait_for(lambda: visits_of(experiment) >= 4, "visits", 400.0)
    cluster.end_soon(job)
    wait_for(lambda: "stopping after" in read_log(experiment, job), "the signal", 120.0)
    gate.unlink()
    cluster.wait_until(job, lambda shown: int(shown["Restarts"]) >= 1, "its limit", 150.0)
    # The next time it may finish, however busy the machine is.
    cluster.limit(job, 30)
    end = cluster.wait_for_end(job, 600.0)
    log = read_log(experiment, job)
    assert end["JobState"] == "COMPLETED", log
    assert "state saved: back into the queue" in log
    assert log.count("Ray has 2 nodes") >= 2
    assert "2 shards on 2 workers" in log
    assert digest(experiment) == reference(tmp_path / "reference")
    wait_for(lambda: not processes_in(nodes), "the end of Ray's processes")


WRONG = """
import os

if "SLURM_JOB_ID" in os.environ:
    raise RuntimeError("no such task")
"""


def test_a_wrong_file_fails_the_job_on_all_nodes_at_once(cluster, nodes, tmp_path):
    experiment = make_project(tmp_path / "wrong", **SEARCH)
    # Whoever hands it in finds nothing wrong with it.
    tasks = experiment.parent / "tasks.py"
    tasks.write_text(f"{WRONG}{tasks.read_text()}")
    job = launch(cluster, experiment, "--time", "30")
    end = cluster.wait_for_end(job, 600.0)
    log = read_log(experiment, job)
    assert end["JobState"] == "FAILED", log
    assert "no such task" in log
    wait_for(lambda: not processes_in(nodes), "the end of Ray's processes")
