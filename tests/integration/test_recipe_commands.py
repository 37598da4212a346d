"""`cerebro run` of a recipe: what it prints, asks and leaves, and what it refuses."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from cerebro.config.files import load_file
from cerebro.errors import ConfigError
from tests.integration.project import Project, environment

RECIPE = """\
output_dir: runs/small
data: {name: dummy, n_train: 48, n_valid: 16, shards: 2, prepared: data}
model: {name: cnn, input_shape: [8, 8, 1], n_classes: 1}
optimizer: {name: SGD, lr: 0.01, momentum: 0.9}
training: {batch_size: 8, n_epochs: 2, loss: binary_crossentropy, metrics: [accuracy]}
backend: inline
workers: 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    (tmp_path / "recipe.yaml").write_text(RECIPE)
    return Project(tmp_path)


def test_the_command_tells_the_best_and_opens_a_shell(project):
    options = ("--optimizer", "lr=0,name=sgd", "--n_epochs", "1", "-v", "--interactive")
    done = subprocess.run(
        [sys.executable, "-m", "cerebro", "run", "recipe.yaml", *options],
        cwd=project.folder,
        env={**environment(), "IPYTHONDIR": str(project.folder / "ipython")},
        input="print('the best is', result.best.id)\n",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "best validation accuracy: 0." in done.stdout
    assert "mean time of an epoch (its visits one after the other): " in done.stdout
    assert "the best is t0000" in done.stdout
    assert "(head): Linear(in_features=128, out_features=1, bias=True)" in done.stderr
    with np.load(project.folder / "runs" / "small" / "history.npz") as history:
        assert history["lr"].tolist() == [0.0]


def test_the_command_shows_the_file_and_stops(project):
    done = project.cerebro(
        *("run", "recipe.yaml", "--show-config", "--batch_size", "4", "--dropout", "0"),
    )
    assert done.returncode == 0, done.stderr
    assert "batch_size: 4" in done.stdout
    assert "dropout: 0.0" in done.stdout
    assert not (project.folder / "runs").exists()


def test_a_run_that_is_to_be_profiled_has_samples_of_its_own(project):
    for options in ((), ("--fresh",)):
        done = project.cerebro("run", "recipe.yaml", "profile={interval: 0.05}", *options)
        assert done.returncode == 0, done.stderr
    for run in ("small", "small.1"):
        directory = project.folder / "runs" / run
        assert "memory/tree_rss" in (directory / "resources.csv").read_text()
        assert list((directory / "tensorboard" / "profiler").iterdir())


def test_a_task_file_has_no_optimizer_to_change(project):
    project.write("task.yaml", "task: tasks:Toy\n")
    done = project.cerebro("run", "task.yaml", "--optimizer", "lr=1")
    assert done.returncode == 2
    assert "--optimizer changes a recipe" in done.stderr


def test_more_machines_than_the_goal_allows_are_refused(project):
    done = project.cerebro(
        *("run", "recipe.yaml", "goal={target: 0.9, max_nodes: 3}", "-n", "4", "-nr", "1"),
        *("--master", "127.0.0.1:1"),
    )
    assert done.returncode == 2
    assert "got 4 nodes and max_nodes=3" in done.stderr


def test_a_wrong_recipe_changes_nothing(project):
    with pytest.raises(ConfigError):
        load_file(project.folder / "recipe.yaml", ["training.loss=none"])
    assert [path.name for path in project.folder.iterdir()] == ["recipe.yaml"]
