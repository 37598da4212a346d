"""Searches that learn and stop, on real workers."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from cerebro import Experiment, tune
from cerebro.errors import UsageError
from cerebro.results import Result
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from cerebro.types import TrialStatus
from tests.experiments import STACK, make_toy_data

SPACE = {"lr": tune.loguniform(1e-4, 1.0)}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    make_toy_data(tmp_path / "data", shards=2, rows=200)
    return tmp_path


def search(folder: Path, name: str, backend: str = "inline", **asked: Any) -> Result:
    workers = 1 if backend == "inline" else 2
    data, store = folder / "data", folder / "runs"
    experiment = Experiment(name=name, data=data, store=store, backend=backend, workers=workers)
    common = {"num_epochs": 9, "metric": "val_loss", "mode": "min", "search": "random"}
    common |= {"num_trials": 9, "batch_size": 16, "stack": STACK}
    task = asked.pop("task", None) or ToyTask()
    result = experiment.run_fit(task, SPACE, **{**common, **asked})
    check(result.path)
    return result


def counts(result: Result) -> dict[str, int]:
    return dict(Counter(str(trial.status) for trial in result.trials))


def decisions(result: Result, what: str) -> list[dict[str, Any]]:
    found = read(DirectoryStore(result.path)).records
    return [each for each in found if each["type"] == "decision" and each["what"] == what]


@pytest.mark.parametrize(
    "asked",
    [
        {"stopper": "halving"},
        {"stopper": "hyperband", "num_trials": None},
        {"stopper": {"name": "patience", "patience": 2}},
        {"stopper": {"name": "pbt", "interval": 3}},
        {"budget": "20 epochs"},
        {"search": "sobol", "num_epochs": 2},
        {"seeds": 2, "num_trials": 3, "num_epochs": 2},
    ],
    ids=lambda asked: next(iter(asked.items()))[0] + "-" + str(next(iter(asked.values())))[:9],
)
def test_what_does_not_depend_on_who_is_first_is_the_same_everywhere(folder, asked):
    alone = search(folder, "inline", **asked)
    beside = search(folder, "local", backend="local", **asked)
    assert beside.digest() == alone.digest()


@pytest.mark.parametrize(
    "asked",
    [
        {"stopper": "asha"},
        {"stopper": {"name": "asha", "kind": "stop"}},
        {"search": "tpe", "num_epochs": 3},
        {"search": "tpe", "stopper": "asha"},
        {"stopper": ["median", {"name": "patience", "patience": 3}]},
    ],
    ids=["asha", "asha-stop", "tpe", "tpe-asha", "median-patience"],
)
def test_what_does_ends_every_trial_and_repeats_where_one_comes_after_another(folder, asked):
    first = search(folder, "first", **asked)
    assert search(folder, "second", **asked).digest() == first.digest()
    beside = search(folder, "local", backend="local", **asked)
    assert all(trial.status.is_final for trial in beside.trials)
    assert counts(beside)["finished"] >= 1


def test_successive_halving_trains_as_far_as_its_rungs_say(folder):
    result = search(folder, "halving", stopper="halving")
    epochs = sorted((len(result.history(trial.number)) for trial in result.trials), reverse=True)
    assert epochs == [9] + [3] * 2 + [1] * 6
    best_first = {trial.number for trial in result.trials if len(result.history(trial.number)) > 1}
    by_first = sorted(result.trials, key=lambda trial: result.history(trial.number)[0]["val_loss"])
    assert best_first == {trial.number for trial in by_first[:3]}


def test_a_promoted_trial_has_the_weights_of_one_that_never_waited(folder):
    halved = search(folder, "halving", stopper="halving", stack=False)
    whole = search(folder, "whole", stack=False)
    (winner,) = [trial for trial in halved.trials if trial.status is TrialStatus.FINISHED]
    assert halved.states(winner.number) == whole.states(winner.number)
    assert halved.history(winner.number) == whole.history(winner.number)


def test_a_goal_ends_the_run_and_says_who_reached_it(folder):
    whole = search(folder, "whole", num_trials=4)
    target = whole.best.metrics["val_loss"]
    result = search(folder, "goal", num_trials=4, goal={"target": target})
    (halt,) = decisions(result, "halt")
    assert f"{whole.best.id} reached val_loss" in halt["reason"]
    assert result.is_finished
    assert result.best.metrics["val_loss"] == target


def test_a_budget_of_epochs_is_never_exceeded(folder):
    for budget in (1, 7, 20):
        result = search(folder, f"budget{budget}", budget={"epochs": budget})
        assert sum(len(result.history(trial.number)) for trial in result.trials) == budget


def test_a_budget_of_time_ends_the_run(folder):
    asked = {"num_epochs": 100_000, "num_trials": 2, "budget": {"time": "2s"}}
    result = search(folder, "time", backend="local", **asked)
    assert counts(result) == {"stopped": 2}
    assert "the time that the run may take is over" in str(result.trials[0].error)


@pytest.mark.parametrize("asked", [{"search": "tpe"}, {"concurrent": 2}, {"stopper": "pbt"}])
def test_nor_does_it_propose_anything_then(folder, asked):
    asked = {"num_epochs": 100_000, "num_trials": 30, "budget": {"time": "2s"}, **asked}
    result = search(folder, "time", backend="local", **asked)
    assert {trial.status for trial in result.trials} == {TrialStatus.STOPPED}
    assert result.is_finished


def test_a_run_goes_on_with_another_time_and_with_no_other_budget(folder):
    asked = {"num_trials": 2, "budget": {"epochs": 4}}
    search(folder, "budget", **asked)
    with pytest.raises(UsageError, match="budget was"):
        search(folder, "budget", **{**asked, "budget": {"epochs": 5}})
    search(folder, "budget", **{**asked, "budget": {"epochs": 4, "time": "1h"}})


def test_a_clone_of_population_based_training_has_its_parents_state_and_other_params(folder):
    result = search(folder, "pbt", stopper={"name": "pbt", "interval": 2}, stack=False)
    copies = [
        each for each in read(DirectoryStore(result.path)).records if each.get("parent") is not None
    ]
    assert copies
    for record in copies:
        parent, clone = result.trials[record["parent"]], result.trials[record["trial"]]
        assert clone.params != parent.params
        replaced = result.trials[record["replaces"]]
        assert replaced.status is TrialStatus.STOPPED
        assert clone.id in str(replaced.error)


def test_bad_trials_do_not_keep_a_search_from_its_end(folder):
    space = {
        **SPACE,
        "fail": [None, {"kind": "nan_loss", "epoch": 1}, {"kind": "raise", "epoch": 0}],
    }
    experiment = Experiment(name="sick", data=folder / "data", store=folder / "runs", workers=2)
    result = experiment.run_fit(
        ToyTask(),
        space,
        **{"num_epochs": 9, "metric": "val_loss", "mode": "min", "batch_size": 16},
        **{"search": "tpe", "num_trials": 12, "stopper": "asha", "stack": False},
    )
    check(result.path)
    assert {"failed", "stopped"} <= counts(result).keys()
    assert all(trial.status.is_final for trial in result.trials)
    failed = next(trial for trial in result.trials if trial.status is TrialStatus.FAILED)
    assert "raises on purpose" in str(failed.error)
    assert failed.traceback


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"stopper": "ahsa"}, "unknown stopper 'ahsa'"),
        ({"stopper": {"name": "asha", "etta": 3}}, "Did you mean 'eta'?"),
        ({"budget": "soon"}, "a time must be"),
        ({"goal": {"metric": "val_loss"}}, "needs target"),
        ({"search": "tpe", "num_trials": None}, "num_trials"),
        ({"folds": 3}, "must be at least 2 and divide the 2 train shards"),
        ({"seeds": 2, "folds": 2}, "Keep one."),
        ({"seeds": 2, "stopper": "asha"}, "weighs trials against each other"),
        ({"stopper": "pbt", "checkpoint": "off"}, "lets trials wait at checkpoints"),
        ({"metric": ["val_loss", "val_accuracy"], "mode": "min"}, "each metric needs a mode"),
    ],
)
def test_what_cannot_be_is_said_before_anything_begins(folder, asked, told):
    with pytest.raises(UsageError) as caught:
        search(folder, "wrong", **asked)
    assert told in str(caught.value)
    assert not (folder / "runs" / "wrong").exists()


def test_two_objectives_and_a_warm_start_that_learns_from_an_earlier_run(folder):
    earlier = search(folder, "earlier", num_trials=4, num_epochs=2)
    both = {"metric": ["val_loss", "val_accuracy"], "mode": ["min", "max"]}
    result = search(
        *(folder, "both"),
        **{**both, "search": "tpe", "num_trials": 6, "num_epochs": 2},
        **{"warm_start": [{"lr": 0.25}], "learn_from": earlier},
    )
    assert result.trials[0].params == {"lr": 0.25}
    assert counts(result) == {"finished": 6}
