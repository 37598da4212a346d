from __future__ import annotations

import pytest

from cerebro.cli.plan import count_trials, show_plan
from cerebro.run.recovery import OpenRun
from cerebro.search import make_sampler, parse_space
from tests.experiments import fit_toy, make_toy_data, toy_spec


@pytest.mark.parametrize("trials", [1, 2, 3, 4, 5, 7, 8, 9, 1000])
def test_trials_of_a_grid_are_counted(trials):
    space = parse_space({"a": list(range(trials))})
    assert count_trials(make_sampler("grid", space)) == trials


def test_trials_of_a_huge_grid_are_counted_without_listing_them():
    space = parse_space({name: list(range(100)) for name in "abcde"})
    assert count_trials(make_sampler("grid", space)) == 100**5


def test_trials_of_a_random_search_are_counted():
    space = parse_space({"a": {"uniform": [0.0, 1.0]}})
    assert count_trials(make_sampler("random", space, seed=0, num_trials=37)) == 37


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
