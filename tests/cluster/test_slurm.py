"""Jobs on a real SLURM: a controller and two slurmd, each in a network namespace of its own."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cerebro.results import Result
from tests.cluster.namespaces import machines
from tests.cluster.ranks import cerebro, digest, make_project, visits_of
from tests.cluster.slurm import BEFORE_S, SlurmCluster, why_no_slurm
from tests.processes import ROOT, hold, wait_for

pytestmark = [
    pytest.mark.skipif(why_no_slurm() is not None, reason=str(why_no_slurm())),
    pytest.mark.timeout(1800),
]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    with machines(["n1", "n2"], "10.78.0") as nodes:
        found = SlurmCluster(tmp_path_factory.mktemp("slurm"), nodes)
        try:
            found.start()
            yield found
        finally:
            found.stop()


def launch(cluster: SlurmCluster, experiment: Path, *options: str) -> int:
    """The number of a job that `cerebro launch slurm` has handed in."""
    command = cerebro("launch", "slurm", experiment.name, "--nodes", "2", *options)
    said = cluster.run(*command, cwd=experiment.parent)
    return int(said.split()[1])


ASK_WHO = """
import os
from cerebro.backend.gang.rendezvous import find_lone_launcher
print(f"started by {find_lone_launcher(os.environ)}")
"""


def test_what_srun_starts_is_a_rank_but_not_what_people_start_in_its_shell(cluster, tmp_path):
    command = [sys.executable, "-c", ASK_WHO]
    assert "started by SLURM" in cluster.run("srun", "-n", "1", *command, cwd=tmp_path)
    # It wants a terminal.
    shell = shlex.join(["srun", "-n", "1", "--pty", *command])
    said = cluster.run("script", "--quiet", "--command", shell, "/dev/null", cwd=tmp_path)
    assert "started by None" in said


def read_log(experiment: Path, job: int) -> str:
    return (experiment.parent / "logs" / f"experiment-{job}.out").read_text(errors="replace")


def test_a_job_that_hits_its_limit_ends_as_one_that_does_not(cluster, tmp_path):
    cut, whole = (make_project(tmp_path / name) for name in ("cut", "whole"))
    gate = hold(cut.parent, 1)
    warned = ("--time", "30", "--signal-before", str(BEFORE_S))
    jobs = [launch(cluster, cut, *warned), launch(cluster, whole, "--time", "30")]
    wait_for(lambda: visits_of(cut) == 2, "the first epoch", 400.0)
    shown = cluster.run(*cerebro("status", jobs[0]), cwd=tmp_path)
    assert "running" in shown
    assert "n[1-2]" in shown
    assert "rank 0 of 2" in shown

    cluster.end_soon(jobs[0])
    wait_for(lambda: "stopping after" in _log(cut, jobs[0]), "the signal before its limit", 120.0)
    gate.unlink()
    cluster.wait_until(jobs[0], lambda job: int(job["Restarts"]) >= 1, "its limit", 150.0)
    # The next time it may finish, however busy the machine is.
    cluster.limit(jobs[0], 30)
    ends = [cluster.wait_for_end(job, 600.0) for job in jobs]
    logs = [read_log(cut, jobs[0]), read_log(whole, jobs[1])]
    assert [end["JobState"] for end in ends] == ["COMPLETED", "COMPLETED"], "\n---\n".join(logs)
    assert int(ends[0]["Restarts"]) >= 1
    assert int(ends[1]["Restarts"]) == 0
    assert "state saved: back into the queue" in logs[0]
    for rank in (0, 1):
        assert f"rank {rank} of 2 on" in logs[1]
    assert digest(cut) == digest(whole)
    assert "completed" in cluster.run(*cerebro("launch", "status", jobs[0]), cwd=tmp_path)


def _log(experiment: Path, job: int) -> str:
    try:
        return read_log(experiment, job)
    except FileNotFoundError:
        return ""


RECIPE = """
description: A recipe in which nothing takes long
output_dir: $SCRATCH/cnn-N${SLURM_JOB_NUM_NODES}-${SLURM_JOB_ID}
data: {name: dummy, input_shape: [16, 16, 3], n_train: 64, n_valid: 32}
model: {name: cnn, input_shape: [16, 16, 3], n_classes: 1}
optimizer: {name: Adam, lr: 0.001}
training: {batch_size: 8, n_epochs: 1, loss: binary_crossentropy, metrics: [accuracy]}
device: {gpu: false}
"""


def test_the_script_trains_on_as_many_nodes_as_it_is_given(cluster, tmp_path):
    for folder in ("configs", "logs", "scripts"):
        (tmp_path / folder).mkdir()
    (tmp_path / "configs" / "cifar10_cnn.yaml").write_text(RECIPE)
    shutil.copy(ROOT / "scripts" / "cifar_cnn.sh", tmp_path / "scripts")
    said = cluster.run(
        *("sbatch", "--parsable", "-N", "2", "scripts/cifar_cnn.sh", "training.n_epochs=2"),
        cwd=tmp_path,
        env={
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "SCRATCH": str(tmp_path / "scratch"),
            "CEREBRO_DATA": str(tmp_path / "prepared"),
        },
    )
    job = int(said)
    end = cluster.wait_for_end(job, 600.0)
    log = (tmp_path / "logs" / f"cifar-cnn-{job}.out").read_text()
    assert end["JobState"] == "COMPLETED", log
    for rank in (0, 1):
        assert log.count(f"rank {rank} of 2 on") == 1
    result = Result.open(tmp_path / "scratch" / f"cnn-N2-{job}")
    assert result.is_finished
    assert len(result.history(0)) == 2
