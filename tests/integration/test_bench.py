"""`cerebro bench`, as a user runs it."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.integration.project import Project, environment, make_project
from tests.processes import is_alive, wait_for

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = make_project(tmp_path)
    made.edit("experiment.yaml", "lr: [0.1, 0.01]", "lr: 0.1\n  visit_s: 0.0")
    made.edit("experiment.yaml", "workers: 2", "backend: inline")
    return made


def times(project: Project) -> dict[str, dict[str, str]]:
    text = (project.folder / "out" / "csv" / "times.csv").read_text(encoding="utf-8")
    return {row["setting"]: row for row in csv.DictReader(text.splitlines())}


BENCH = ("bench", "experiment.yaml", "--interval", "0.05", "--out", "out")


def test_settings_are_run_compared_and_not_run_again(project: Project) -> None:
    command = (*BENCH, "--sweep", "batch_size=16,32")
    done = project.cerebro(*command)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2/2 1 node, batch 32 ..." in done.stderr
    assert "Batch 32 took" in done.stdout
    found = times(project)
    assert list(found) == ["n1-p1-b16-r0", "n1-p1-b32-r0"]
    assert all(row["status"] == "done" for row in found.values())
    out = project.folder / "out"
    assert (out / "report.html").read_text(encoding="utf-8").count("<polyline") > 8
    assert (out / "runs" / "n1-p1-b16-r0" / "report.html").exists()
    assert {path.name for path in (out / "png").iterdir()} >= {"n1-p1-b16-r0-cpu.png", "split.png"}

    again = project.cerebro(*command)
    assert "2 of 2 settings are there already." in again.stderr
    assert times(project) == found


def test_a_setting_that_fails_is_told_and_the_others_go_on(project: Project) -> None:
    done = project.cerebro(*BENCH, "--sweep", "space.lr=oops,0.1")
    assert done.returncode == 1
    rows = times(project)
    assert [row["status"] for row in rows.values()] == ["failed", "done"]
    assert "node 0 ended with 1: all 1 trials failed. The first failed: ValueError" in done.stdout
    assert "1 setting failed; the same command tries again." in done.stdout


def test_one_that_is_killed_leaves_nothing_running_and_goes_on(project: Project) -> None:
    arguments = [*BENCH, "--sweep", "epochs=1,2"]
    out = project.folder / "out"
    first = out / "settings" / "n1-p1-b32-epochs-1-r0" / "setting.json"
    second = out / "runs" / "n1-p1-b32-epochs-2-r0" / "journal.jsonl"
    held = project.hold(1)
    with subprocess.Popen(
        [sys.executable, "-m", "cerebro", *arguments],
        cwd=project.folder,
        env=environment(),
        stderr=subprocess.DEVNULL,
    ) as bench:
        wait_for(second.exists, "the second setting has begun")
        started = psutil.Process(bench.pid).children(recursive=True)
        os.kill(bench.pid, signal.SIGKILL)
        bench.wait()
    wait_for(lambda: not any(map(is_alive, started)), "what it had started has ended")
    held.unlink()
    before = first.read_bytes()

    done = project.cerebro(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 of 2 settings are there already." in done.stderr
    assert first.read_bytes() == before
    assert [row["status"] for row in times(project).values()] == ["done", "done"]


def test_wrong_requests_are_refused_before_anything_runs(project: Project) -> None:
    assert "--batch must be both, global or rank" in project.refuse(*BENCH, "--batch", "all")
    assert "got 1 hosts for 2 nodes" in project.refuse(*BENCH, "--nodes", "2", "--hosts", "a")
    assert "--nodes must be whole numbers" in project.refuse(*BENCH, "--nodes", "0")
    told = project.refuse(*BENCH, "--sweep", "batchsize=16,32")
    assert "batchsize" in told
    assert "batch_size" in told
    assert not (project.folder / "out" / "settings").exists()


RECIPE = """\
output_dir: runs/recipe
data: {name: dummy, n_train: 64, n_valid: 16, shards: 2, prepared: prepared}
model: {name: mlp6, input_shape: [8, 8, 1], n_classes: 1}
optimizer: {name: SGD, lr: 0.01}
training: {batch_size: 16, n_epochs: 2, loss: mse}
"""


def test_a_recipe_is_compared_on_two_processes_and_with_its_states_saved(project: Project) -> None:
    project.write("recipe.yaml", RECIPE)
    asked = ("--procs", "1,2", "--batch", "global", "--checkpoint")
    done = project.cerebro("bench", "recipe.yaml", "--interval", "0.2", "--out", "out", *asked)
    assert done.returncode == 0, done.stdout + done.stderr
    found = times(project)
    assert [row["status"] for row in found.values()] == ["done"] * 3
    alone, saved, shared = found
    assert (saved, shared) == ("n1-p1-b16-saved-r0", "n1-p2-b16-global-unsaved-r0")
    assert float(found[shared]["communication"]) > 0 == float(found[alone]["communication"])
    assert found[shared]["steps"] == found[alone]["steps"]
    out = project.folder / "out"
    assert "The effect of saving states" in (out / "report.html").read_text(encoding="utf-8")
    kept = {key: [*(out / "runs" / key).glob("trials/*/checkpoints/*")] for key in found}
    assert [key for key, files in kept.items() if files] == [saved]
    assert [graphs_of(out / "runs" / key) for key in found] == [1, 1, 1]


def graphs_of(run: Path) -> int:
    """How many graphs TensorBoard finds among what a run has written."""
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    files = (run / "tensorboard").rglob("*tfevents*")
    events = [event for file in files for event in loader.EventFileLoader(str(file)).Load()]
    return sum(bool(event.graph_def) for event in events)


def test_data_that_are_missing_are_told_before_the_first_setting(project: Project) -> None:
    (project.folder / "recipe.yaml").write_text(
        "output_dir: out/run\ndata: {name: mnist, source: nowhere}\n"
        "model: {name: cnn, input_shape: [28, 28, 1], n_classes: 10}\n"
        "optimizer: {name: SGD, lr: 0.1}\n"
        "training: {batch_size: 16, n_epochs: 1, loss: categorical_crossentropy}\n",
        encoding="utf-8",
    )
    told = project.refuse("bench", "recipe.yaml", "--sweep", "batch_size=16,32", "--out", "out")
    assert "recipe.yaml:2: " in told
    assert "nowhere" in told
    assert not (project.folder / "out" / "settings").exists()
