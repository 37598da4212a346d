from __future__ import annotations

import pytest
import yaml

from cerebro.cli.benching import Request, run_bench
from cerebro.errors import UsageError

RECIPE = {
    "output_dir": "run",
    "data": {"name": "dummy", "n_train": 64, "n_valid": 32, "prepared": "data"},
    "model": {"name": "cnn", "input_shape": [16, 16, 3], "n_classes": 1},
    "optimizer": {"name": "Adam", "lr": 0.001},
    "training": {"batch_size": 16, "n_epochs": 1, "loss": "mse", "metrics": ["accuracy"]},
    "goal": {"target": 0.9, "devices": "cpu", "max_nodes": 3},
}
TASK = {
    "name": "toy",
    "task": "tasks:Net",
    "data": "data",
    "epochs": 1,
    "batch_size": 16,
    "metric": "val_loss",
    "mode": "min",
    "space": {"lr": [0.1]},
    "goal": {"target": 0.1, "max_nodes": 3},
}


@pytest.fixture
def bench(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def bench(tree, *, sweep=(), nodes="1"):
        (tmp_path / "file.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
        return run_bench(
            Request(
                path=tmp_path / "file.yaml",
                overrides=(),
                sweep=sweep,
                nodes=nodes,
                procs="1",
                batch="global",
                is_saved=False,
                repeats=1,
                interval_s=1.0,
                hosts=(),
                out=tmp_path / "out",
            )
        )

    return bench


@pytest.mark.parametrize("tree", [RECIPE, TASK], ids=["recipe", "task"])
def test_more_nodes_than_the_goal_allows_are_refused_before_anything_runs(bench, tmp_path, tree):
    if tree is TASK:
        (tmp_path / "data").mkdir()
    before = {path.name for path in tmp_path.iterdir()}
    with pytest.raises(UsageError) as caught:
        bench(tree, nodes="1,4")
    assert str(caught.value).startswith(f"{tmp_path / 'file.yaml'}:")
    assert "got 4 nodes and max_nodes=3. Change --nodes or goal.max_nodes." in str(caught.value)
    assert {path.name for path in tmp_path.iterdir()} == {*before, "file.yaml"}


def test_a_setting_on_another_device_than_the_goal_allows_is_refused_too(bench, tmp_path):
    with pytest.raises(UsageError, match=r"the goal allows cpu only, but got 'cuda:1'"):
        bench(RECIPE, sweep=("device.gpu=false,1",))
    assert {path.name for path in tmp_path.iterdir()} == {"file.yaml"}
