from __future__ import annotations

import re

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


FILE = """\
name: toy
task: cerebro.testing.toy:ToyTask
data: data
workers: 2
epochs: 9
batch_size: 16
metric: val_loss
mode: min
stack: false
space: {lr: {uniform: [0.0, 1.0]}}
search: {name: random, trials: 20}
"""


def shown(folder, capsys, *overrides, **options):
    make_toy_data(folder / "data")
    (folder / "experiment.yaml").write_text(FILE)
    show_plan(folder / "experiment.yaml", list(overrides), **options)
    return capsys.readouterr().out


def test_of_an_adaptive_search_only_the_first_trial_is_shown(tmp_path, capsys):
    told = shown(tmp_path, capsys, "search.name=tpe")
    assert "trials       20 by tpe search" in told
    assert "t0000  lr=" in told
    assert "t0001" not in told
    assert "… and 19 more, which depend on results" in told


def test_a_stopper_that_says_how_many_trials_there_are_is_asked(tmp_path, capsys):
    told = shown(tmp_path, capsys, "search=random", "stopper=hyperband")
    assert "trials       17 by random search" in told
    assert "stopper      hyperband (eta 3)" in told


def test_repeats_are_counted_as_trials(tmp_path, capsys):
    told = shown(tmp_path, capsys, "seeds=3")
    assert "trials       60 by random search: 20 configurations x 3 seeds" in told
    assert "t0003  lr=" in told


@pytest.mark.parametrize(
    ("budget", "epochs"),
    [("12 trials", 108), ("50 epochs", 50), ("{trials: 2, epochs: 50}", 18), ("1h", 180)],
)
def test_no_more_visits_are_planned_than_the_budget_allows(tmp_path, capsys, budget, epochs):
    found = re.search(r"visits +\d+: (\d+) train", shown(tmp_path, capsys, f"budget={budget}"))
    shards = re.search(r"x (\d+) train shards", shown(tmp_path, capsys))
    assert int(found[1]) == epochs * int(shards[1])


def test_a_search_is_played_through(tmp_path, capsys):
    told = shown(tmp_path, capsys, "stopper=asha", is_simulated=True)
    assert "epochs of 20 trials, as long as " in told
    assert re.search(r"trials that come to epoch 1: 20, 3: \d+, 9: \d+", told)
