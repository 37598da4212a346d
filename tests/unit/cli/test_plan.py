from __future__ import annotations

import pytest

from cerebro.cli.plan import show_plan
from cerebro.run.recovery import OpenRun
from tests.experiments import fit_toy, make_toy_data, toy_spec


def test_of_a_run_that_was_killed_too_early_no_stacks_are_told(tmp_path, monkeypatch, capsys):
    make_toy_data(tmp_path / "data")
    spec = toy_spec(tmp_path / "data", {"lr": [0.1, 0.2, 0.3]}, stack=2)
    append = OpenRun.append

    def killed(run, *records):
        if records[0]["type"] == "stacks":
            raise KeyboardInterrupt
        append(run, *records)

    with monkeypatch.context() as patch:
        patch.setattr(OpenRun, "append", killed)
        with pytest.raises(KeyboardInterrupt):
            fit_toy(tmp_path / "runs" / "toy", spec)
    file = tmp_path / "experiment.yaml"
    file.write_text(
        "name: toy\ntask: cerebro.testing.toy:ToyTask\ndata: data\nstore: runs\nepochs: 2\n"
        "batch_size: 16\nmetric: val_loss\nmode: min\nstack: 2\nspace: {lr: [0.1, 0.2, 0.3]}\n"
    )
    undecided = "as asked, 2 trials each at most: put together when the run begins"
    show_plan(file, [])
    assert undecided in capsys.readouterr().out
    fit_toy(tmp_path / "runs" / "toy", spec)
    show_plan(file, [])
    assert "3 trials in 2 stacks of 1 to 2" in capsys.readouterr().out
