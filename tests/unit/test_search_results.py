"""What a run's journal says about who is best, and why it ended."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from cerebro import Experiment, Result, tune
from cerebro.cli.results import Format, show_results, show_trial
from cerebro.cli.status import show_status
from cerebro.errors import UsageError
from cerebro.run.history import RunHistory
from cerebro.run.ranking import ending_of
from cerebro.storage import DirectoryStore
from cerebro.storage.inbox import Command, Verb, send
from cerebro.storage.journal import Journal
from cerebro.testing.toy import ToyTask
from cerebro.track.text import show
from cerebro.types import Mode, TrialStatus
from tests.experiments import fast_folder, make_toy_data, trial_files

SPACE = {"lr": tune.loguniform(1e-3, 1)}
HEALTHY_OR_NOT = {"lr": [0.5, 0.05], "fail": {"choice": [None, "nan_loss"]}}


@pytest.fixture(scope="module")
def home():
    with fast_folder() as path:
        make_toy_data(path / "data", shards=4)
        yield path


def run(home: Path, name: str, space=SPACE, **asked) -> Result:
    """A run of this name, made once."""
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend="inline", workers=1
    )
    usual = {"num_epochs": 2, "metric": "val_loss", "mode": "min", "batch_size": 16}
    if space is SPACE:
        usual |= {"search": "random", "num_trials": 3}
    return experiment.run_fit(ToyTask(), space, **{**usual, "stack": False, **asked})


# Repeats


def test_seeds_make_configurations_with_mean_and_deviation(home, capsys):
    result = run(home, "seeds", seeds=2)
    assert len(result.configs) == 3
    means = [config.mean for config in result.configs]
    assert means == sorted(means)
    first = result.configs[0]
    values = [trial.metrics["val_loss"] for trial in first.trials]
    assert first.mean == pytest.approx(sum(values) / 2)
    assert first.std == pytest.approx(abs(values[0] - values[1]) / 2**0.5)
    assert [trial.repeat for trial in first.trials] == [0, 1]
    assert result.best.metrics["val_loss"] == min(values)
    assert " ± " in str(result.leaderboard())
    show_trial(Path(result.path), first.trials[1].id, Format.TABLE)
    assert f"repeat 2 of 2, of the configuration of {first.id}" in capsys.readouterr().out


def test_the_table_on_disk_is_that_of_the_journal(home, capsys):
    for name, asked in {"seeds": {"seeds": 2}, "front": FRONT}.items():
        result = run(home, name, **asked)
        show_results(Path(result.path), Format.CSV)
        assert capsys.readouterr().out == Path(result.path, "leaderboard.csv").read_text()


def test_a_trial_says_which_fold_it_held_out(home, capsys):
    result = run(home, "folds", folds=2)
    show_trial(Path(result.path), "1", Format.TABLE)
    assert "fold 2 of 2 held out, of the configuration of t0000" in capsys.readouterr().out


def test_a_configuration_that_fails_comes_last(home):
    result = run(home, "failing", HEALTHY_OR_NOT, seeds=2)
    assert [config.is_complete for config in result.configs] == [True, True, False, False]
    assert [config.mean is None for config in result.configs] == [False, False, True, True]
    ranks = [row["rank"] for row in result.leaderboard()]
    assert ranks == [1, 1, 2, 2, None, None, None, None]


def test_keep_top_counts_configurations(home):
    result = run(home, "kept", seeds=2, keep_top=1)
    kept = {trial.number for trial in result.configs[0].trials}
    root = Path(result.path)
    assert {t.number for t in result.trials if trial_files(root, t.number)} == kept


# Constraints and objectives


def test_keep_top_keeps_the_whole_front(home):
    result = run(home, "front-kept", **{**FRONT, "constraints": None}, keep_top=1)
    front = {trial.number for trial in result.pareto()}
    root = Path(result.path)
    assert 1 < len(front) < 8
    assert {t.number for t in result.trials if trial_files(root, t.number)} == front


FRONT = {
    "metric": ["val_loss", "train_loss"],
    "mode": ["min", "max"],
    "num_trials": 8,
    "constraints": {"train_loss": 1.5},
}


def test_the_front_is_feasible_and_in_the_order_of_the_first_metric(home, capsys):
    result = run(home, "front", **FRONT)
    front = result.pareto()
    losses = [trial.metrics["val_loss"] for trial in front]
    assert losses == sorted(losses)
    assert all(trial.metrics["train_loss"] <= 1.5 for trial in front)
    show_results(Path(result.path), Format.JSON, is_pareto=True)
    rows = json.loads(capsys.readouterr().out)
    assert [row["trial"] for row in rows] == [trial.id for trial in front]
    assert all(row["pareto"] and row["feasible"] for row in rows)


def test_trials_beyond_a_bound_come_after_the_others(home):
    configs = run(home, "front", **FRONT).configs
    feasible = [config.trials[0].metrics["train_loss"] <= 1.5 for config in configs]
    assert feasible == [config.is_feasible for config in configs]
    assert feasible == sorted(feasible, reverse=True)
    assert 0 < sum(feasible) < 8


def test_one_metric_has_no_front(home):
    with pytest.raises(UsageError, match=r"several metrics, but .* has only val_loss"):
        run(home, "seeds", seeds=2).pareto()


# Copies


@pytest.fixture(scope="module")
def family(home):
    """A run with a copy of its first trial, which was trained two epochs more."""
    steered(home, "family", Command(command=Verb.CLONE, trial=0, params={"lr": 0.25}))
    return steered(home, "family", Command(command=Verb.EXTEND, trial=3, epochs=4))


def steered(home: Path, name: str, *commands: Command) -> Result:
    """A run that was given commands after its end, and has carried them out."""
    result = run(home, name)
    for command in commands:
        send(DirectoryStore(result.path), command)
    return run(home, name)


def test_a_copy_knows_its_parent_and_begins_after_it(family, capsys):
    copy = family.trials[3]
    assert (copy.parent, copy.parent_epochs, copy.parent_visits) == ("t0000", 2, 8)
    assert [row["epoch"] for row in family.history(copy.id)] == [2, 3]
    show_trial(Path(family.path), copy.id, Format.TABLE)
    lines = capsys.readouterr().out.splitlines()
    old = show(family.trials[0].params["lr"])
    assert lines[1] == f"a copy of t0000 after epoch 2, lr {old} -> 0.25"
    assert [line.split()[0] for line in lines[2:]] == ["epoch", "3", "4"]


def test_the_progress_of_a_copy_begins_with_its_own_epochs(family):
    lines = Path(family.path, "trials/t0003/progress.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in lines] == ["epoch", "2", "3"]


def test_the_leaderboard_names_parents(family):
    rows = {row["trial"]: row for row in family.leaderboard()}
    assert [rows[trial.id]["parent"] for trial in family.trials] == [None, None, None, "t0000"]
    assert "t0000, epoch 2" in str(family.leaderboard())


# Endings


def test_a_goal_that_was_reached_has_a_time(home, capsys):
    result = run(home, "goal", goal={"target": 1.5}, num_epochs=9)
    assert result.ending.startswith("goal reached: t000")
    assert " val_loss " in result.ending
    records = journal_of(result)
    # Up to the end of the evaluation that reached it, which is later than that of any visit.
    last = next(r for r in reversed(records) if r["type"] == "epoch")
    assert result.time_to_target_s == last["end_s"]
    assert last["end_s"] > max(r["end_s"] for r in records if r["type"] == "visit")
    summary = json.loads(Path(result.path, "summary.json").read_text())
    assert summary["time_to_target_s"] == result.time_to_target_s
    assert summary["ending"] == result.ending
    show_results(Path(result.path), Format.TABLE)
    assert capsys.readouterr().out.splitlines()[-1] == result.ending


def test_a_budget_that_was_used_up_is_no_goal(home):
    result = run(home, "budget", budget="4 epochs", goal={"target": 0.0})
    assert result.ending.startswith("ended early: the budget of 4 epochs is used up, after ")
    assert result.time_to_target_s is None


def test_a_goal_stays_reached_when_the_run_goes_on(home):
    first = run(home, "on", goal={"target": 1.5}, num_epochs=9)
    added = Command(command=Verb.ADD, params={"lr": 1e-5})
    send(DirectoryStore(first.path), added)
    result = run(home, "on", goal={"target": 1.5}, num_epochs=9)
    assert len(result.trials) == len(first.trials) + 1
    assert result.ending == first.ending
    assert result.time_to_target_s == first.time_to_target_s


def test_a_goal_that_was_reached_stays_so_whatever_ends_the_run_later(home):
    asked = {"goal": {"target": 1.5}, "num_epochs": 9}
    first = run(home, "stopped", **asked)
    store = DirectoryStore(first.path)
    for command in (Command(command=Verb.ADD, params={"lr": 1e-5}), Command(command=Verb.STOP)):
        send(store, command)
    result = run(home, "stopped", **asked)
    assert len(result.trials) == len(first.trials) + 1
    assert (result.ending, result.time_to_target_s) == (first.ending, first.time_to_target_s)


def test_a_goal_that_a_trial_had_after_the_end_is_told_with_its_time(home):
    losses = [epoch["val_loss"] for epoch in run(home, "further", num_epochs=6).history(0)]
    target = min(losses)
    asked = {"goal": {"target": target}, "num_epochs": 6, "budget": "1 epochs"}
    first = run(home, "budgeted", **asked)
    assert first.ending.startswith("ended early: the budget of 1 epochs is used up")
    send(DirectoryStore(first.path), Command(command=Verb.EXTEND, trial=0, epochs=6))
    result = run(home, "budgeted", **asked)
    assert result.ending.startswith("goal reached: t0000 reached val_loss ")
    assert f" in epoch {losses.index(target) + 1}, after " in result.ending
    assert result.summary["time_to_target_s"] > 0


def test_a_goal_that_was_missed_has_its_aim_and_the_time_that_went_by(home, capsys):
    result = run(home, "missed", goal={"target": 0.0})
    assert re.fullmatch(
        r"goal not reached: no trial has val_loss <= 0, after [\d.]+ s", result.ending
    )
    assert result.time_to_target_s is None
    assert result.summary["ending"] == result.ending
    show_results(Path(result.path), Format.TABLE)
    assert capsys.readouterr().out.splitlines()[-1] == result.ending


def test_a_run_that_went_to_its_end_has_no_ending(home):
    result = run(home, "seeds", seeds=2)
    assert result.ending is None
    assert result.time_to_target_s is None
    assert result.summary["ending"] is None


def test_the_time_to_a_goal_counts_all_drivers():
    history = RunHistory(1, 5, "val_loss", Mode.MIN)
    visit = {"type": "visit", "trial": 0, "step": 0, "sums": {}}
    reason = "t0000 reached val_loss 0.1 <= 0.2 in epoch 2"
    history.apply(
        {"type": "driver"},
        {"type": "trial", "trial": 0, "params": {}, "start": 0},
        {**visit, "epoch": 0, "end_s": 30.0},
        {"type": "driver"},
        {**visit, "epoch": 1, "end_s": 11.0},
        {"type": "decision", "what": "halt", "by": "search", "reason": reason},
    )
    ending = ending_of(history, {"goal": {"metric": "val_loss", "target": 0.2}})
    assert str(ending) == f"goal reached: {reason}, after 41 s"


# Status


def test_the_status_of_a_search_tells_what_it_does_and_what_is_left(home, capsys):
    budget = {"epochs": 30, "time": "1h"}
    asked = {"stopper": "asha", "num_epochs": 9, "goal": {"target": 0.0}, "budget": budget}
    result = run(home, "asha", **asked)
    show_status(Path(result.path))
    text = capsys.readouterr().out
    assert "search  random + asha (eta 3, grace 1, brackets 1, kind promote)" in text
    assert ", until val_loss <= 0\n" in text
    assert " of 30 epochs, " in text
    assert " of 1 h 00 min, " in text
    assert "trials  3: 1 finished, 2 stopped" in text


def test_the_status_of_a_run_under_way_counts_those_that_wait(home, tmp_path, capsys):
    result = run(home, "waiting", stopper="asha", num_epochs=9)
    records = journal_of(result)
    ends = [i for i, record in enumerate(records) if record.get("reason")]
    root = shutil.copytree(result.path, tmp_path / "copy")
    rewrite(root, records[: ends[0]])
    show_status(root)
    text = capsys.readouterr().out
    assert "waiting" in text
    assert "waiting for a promotion:" in text
    assert "after epoch 1 of 9" in text


def test_the_status_names_the_last_commands(home, capsys):
    extend = Command(command=Verb.EXTEND, trial=0, epochs=3, by="ada")
    stop = Command(command=Verb.STOP, trial=9, by="bob\x1b[2J")
    result = steered(home, "steered", extend, stop)
    assert result.trials[0].status is TrialStatus.FINISHED
    show_status(Path(result.path))
    commands = capsys.readouterr().out.split("last commands:\n")[1].splitlines()
    assert commands[0].split() == ["extend", "t0000", "epochs=3", "by", "ada", "taken"]
    assert commands[1].split()[:4] == ["stop", "t0009", "by", "bob?[2J"]
    assert "refused: there is no trial 9." in commands[1]


def journal_of(result: Result) -> list[dict]:
    journal = Journal.open(DirectoryStore(result.path))
    journal.close()
    return list(journal.records)


def rewrite(root: Path, records: list[dict]) -> None:
    (root / "journal.jsonl").unlink()
    journal = Journal.open(DirectoryStore(root))
    journal.append(records)
    journal.close()
