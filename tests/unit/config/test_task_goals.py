"""Goals of files with a task, and what they allow."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.config.files import load_file, show_file
from cerebro.config.schema import ExperimentConfig
from cerebro.errors import ConfigError

TEXT = """\
name: digits
task: package.tasks:Digits
data: data
epochs: 5
batch_size: 32
metric: val_accuracy
mode: max
space: {lr: [0.1]}
goal:
  target: 0.9
  devices: cpu
  max_nodes: 3
"""


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data").mkdir()
    for name in ("SLURM_JOB_NUM_NODES", "SLURM_NNODES"):
        monkeypatch.delenv(name, raising=False)


def load(*overrides: str) -> ExperimentConfig:
    Path("experiment.yaml").write_text(TEXT)
    return load_file("experiment.yaml", overrides)


def refused(*overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(*overrides)
    return str(caught.value)


def test_what_a_goal_allows_is_kept_and_shown() -> None:
    found = load("device=cpu", "launch={nodes: 3}")
    assert found.goal == {"target": 0.9, "devices": "cpu", "max_nodes": 3}
    assert "max_nodes: 3" in show_file(found, "experiment.yaml", [])


def test_another_device_than_the_goal_allows_is_refused() -> None:
    message = refused("device=cuda:1")
    assert message == (
        "override 'device=cuda:1': the goal allows cpu only, but got 'cuda:1'. Change device or "
        "goal.devices."
    )
    assert "the goal allows cuda only, but got 'cpu'" in refused("goal.devices=cuda", "device=cpu")


def test_more_nodes_than_the_goal_allows_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    message = refused("launch={nodes: 4}")
    assert "got 4 nodes and max_nodes=3. Change launch.nodes or goal.max_nodes." in message
    monkeypatch.setenv("SLURM_NNODES", "5")
    message = refused()
    assert message.startswith("experiment.yaml:12: `nodes <= goal.max_nodes` must hold, but got 5")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("goal.devices=tpu", "`devices` of a goal must be cpu or cuda, but got devices='tpu'."),
        ("goal.max_nodes=0", "`max_nodes >= 1` must hold, but got max_nodes=0."),
        ("goal={target: 0.9, max_node: 3}", "unknown key of goal 'max_node'."),
    ],
)
def test_wrong_values_are_named(override: str, message: str) -> None:
    told = refused(override)
    assert told.startswith(f"override {override!r}: ")
    assert message in told


def test_workers_of_a_trial_that_are_given_twice_are_refused() -> None:
    message = refused("parallel={mode: hybrid, workers_per_trial: 2}", "workers_per_trial=2")
    assert message == "override 'workers_per_trial=2': workers_per_trial is given twice: keep one."
