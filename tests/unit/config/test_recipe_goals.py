"""Goals of recipes, and their constraints."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.config.recipes import RECIPE, load, refused


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SCRATCH", "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)


GOAL = RECIPE + (
    "goal:\n  metric: val_accuracy\n  mode: max\n  target: 0.9\n  max_epochs: 40\n"
    "  devices: cpu\n  max_nodes: 3\n"
)


def test_a_goal_keeps_to_its_devices():
    found = load(GOAL)
    assert found.device == "cpu"
    assert found.goal == {
        "metric": "val_accuracy",
        "mode": "max",
        "target": 0.9,
        "max_epochs": 40,
        "devices": "cpu",
        "max_nodes": 3,
    }
    message = refused(GOAL, "device.gpu=0")
    assert "the goal allows cpu only, but got 'cuda:0'. Change device.gpu or goal.devi" in message
    assert "the goal allows cuda only" in refused(GOAL, "goal.devices=cuda", "device.gpu=false")


def test_a_metric_of_a_goal_without_a_mode_is_told_with_its_line():
    message = refused(RECIPE + "goal:\n  target: 0.1\n  metric: val_loss\n")
    assert message.startswith("recipe.yaml:21: ")
    assert "needs its mode" in message


def test_more_epochs_than_the_goal_allows_are_refused():
    message = refused(GOAL, "training.n_epochs=41")
    assert "`n_epochs <= goal.max_epochs` must hold, but got n_epochs=41" in message


def test_a_goal_by_another_metric_than_the_search_needs_a_mode():
    message = refused(GOAL.replace("  mode: max\n", ""), "search={metric: val_loss, mode: min}")
    assert message.startswith("recipe.yaml:20: stopper 'goal' goes by 'val_accuracy'")


def test_a_goal_the_other_way_than_trials_are_ranked_is_refused():
    message = refused(GOAL.replace("  mode: max\n", ""), "goal.metric=null", "goal.mode=min")
    assert "val_accuracy has the mode max, but got min. Name another metric of the goal" in message


def test_more_nodes_than_the_goal_allows_are_refused(monkeypatch):
    message = refused(GOAL, "launch.nodes=4")
    assert message.startswith("override 'launch.nodes=4': `nodes <= goal.max_nodes` must hold")
    assert "got 4 nodes and max_nodes=3. Change launch.nodes or goal.max_nodes." in message
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "5")
    assert "got 5 nodes and max_nodes=3" in refused(GOAL)
    # What the file would ask for does not hide what there is.
    assert "got 5 nodes and max_nodes=3" in refused(GOAL, "launch.nodes=2")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "3")
    load(GOAL)


@pytest.mark.parametrize(
    ("world", "local"),
    [
        ("OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE"),
        ("PMI_SIZE", "MPI_LOCALNRANKS"),
    ],
)
def test_machines_of_mpi_are_counted(world, local, monkeypatch):
    monkeypatch.setenv(world, "8")
    monkeypatch.setenv(local, "2")
    assert "got 4 nodes and max_nodes=3" in refused(GOAL)
    monkeypatch.setenv(local, "4")
    load(GOAL)
