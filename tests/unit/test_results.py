from __future__ import annotations

import json
import shutil
import sys

import numpy as np
import pytest

from cerebro import Result
from cerebro.data import from_arrays, open_dataset
from cerebro.errors import CheckpointCorruptError, RunCorruptError, UsageError
from cerebro.run.spec import Checkpointing
from cerebro.storage import layout
from cerebro.testing.faults import flip_bit
from cerebro.testing.toy import ToyTask
from cerebro.types import Mode, TrialStatus
from tests.experiments import fast_folder, fit_toy, make_toy_data, toy_spec
from tests.unit.run.runs import fit_until

LRS = [0.5, 0.05, 0.005]


@pytest.fixture(scope="module")
def home():
    with fast_folder() as path:
        make_toy_data(path / "data")
        fit_toy(path / "run", toy_spec(path / "data", {"lr": LRS}, epochs=3))
        yield path


@pytest.fixture
def root(home):
    """A finished run of three healthy trials; nobody writes to it."""
    return home / "run"


@pytest.fixture
def copy(root, tmp_path):
    """One that may be broken."""
    return shutil.copytree(root, tmp_path / "copy")


def fit_kinds(home, folder):
    """A run in which trial 0 is healthy, 1 fails in its second epoch, and 2 diverges at once."""
    late = {"kind": "raise", "epoch": 1}
    space = {"fail": {"choice": [None, late, "nan_loss"]}, "lr": 0.5}
    fit_toy(folder / "run", toy_spec(home / "data", space))
    return Result.open(folder / "run")


# Opening


def test_a_finished_run_can_be_opened(root):
    result = Result.open(root)
    assert result.is_finished
    assert result.path == str(root)
    assert (result.metric, result.mode) == ("val_loss", Mode.MIN)
    assert result.summary["efficiency"] > 0
    assert result.document.task == "cerebro.testing.toy:ToyTask"


def test_a_run_that_is_not_finished_can_be_opened(home, tmp_path):
    fit_until(tmp_path / "run", toy_spec(home / "data"), 1, "epoch")
    result = Result.open(tmp_path / "run")
    assert not result.is_finished
    assert result.summary == {}
    assert result.trials[0].status is TrialStatus.RUNNING
    assert len(result.history(0)) == 1
    assert result.best.epoch == 0


def test_a_run_in_which_nothing_was_trained_yet_has_no_best(home, tmp_path):
    fit_until(tmp_path / "run", toy_spec(home / "data"), 1, "driver", trial=None)
    result = Result.open(tmp_path / "run")
    assert [trial.status for trial in result] == ["pending", "pending"]
    with pytest.raises(UsageError, match=r"no trial of .* has finished an epoch with val_loss\.$"):
        _ = result.best
    with pytest.raises(UsageError, match="nothing trained yet"):
        result.load(0)


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir()])
def test_a_directory_without_a_run_is_refused(tmp_path, make):
    make(tmp_path / "other")
    with pytest.raises(UsageError, match=r"must have a run\.json, but .*other has none"):
        Result.open(tmp_path / "other")


def test_a_file_is_no_run(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UsageError, match="has none"):
        Result.open(tmp_path / "file")


def test_a_run_json_of_somebody_else_is_refused(tmp_path):
    (tmp_path / layout.RUN).write_text(json.dumps({"name": "another tool's"}))
    with pytest.raises(RunCorruptError, match="must describe a run, but does not"):
        Result.open(tmp_path)


def test_a_run_may_be_moved(root, copy):
    assert Result.open(copy).digest() == Result.open(root).digest()
    assert Result.open(copy).load(0).weight.shape == (4, 3)


# Trials


def test_trials_are_listed_by_number(root):
    result = Result.open(root)
    assert [trial.id for trial in result] == ["t0000", "t0001", "t0002"]
    assert [trial.params["lr"] for trial in result.trials] == LRS
    assert {trial.status for trial in result} == {TrialStatus.FINISHED}


def test_a_trials_metrics_are_those_of_its_best_epoch(root):
    result = Result.open(root)
    for trial in result:
        history = result.history(trial.number)
        losses = [row["val_loss"] for row in history]
        assert trial.epoch == losses.index(min(losses))
        assert trial.metrics == {k: v for k, v in history[trial.epoch].items() if k != "epoch"}


def test_the_history_of_a_trial_has_a_row_for_each_epoch(root):
    history = Result.open(root).history("t0001")
    assert [row["epoch"] for row in history] == [0, 1, 2]
    assert set(history[0]) == {"epoch", "train_loss", "val_loss", "val_accuracy"}
    assert history == Result.open(root).history(1)


@pytest.mark.parametrize("name", ["t0003", "1", 3, -1, None])
def test_an_unknown_trial_lists_those_there_are(root, name):
    with pytest.raises(UsageError) as caught:
        Result.open(root).history(name)
    assert str(caught.value) == f"unknown trial {name!r}. Known: t0000, t0001, t0002."


# Ranking


@pytest.mark.parametrize(
    ("metric", "mode", "pick"),
    [("val_loss", Mode.MIN, min), ("val_accuracy", Mode.MAX, max), ("train_loss", Mode.MAX, max)],
)
def test_the_best_is_the_best(home, tmp_path, metric, mode, pick):
    spec = toy_spec(home / "data", {"lr": LRS}, metric=metric, mode=mode)
    fit_toy(tmp_path / "run", spec)
    result = Result.open(tmp_path / "run")
    values = [row[metric] for trial in result for row in result.history(trial.number)]
    assert result.best.metrics[metric] == pick(values)
    assert result.leaderboard()[0]["trial"] == result.best.id
    ranked = [row[metric] for row in result.leaderboard()]
    assert ranked == sorted(ranked, reverse=mode is Mode.MAX)


def test_the_leaderboard_is_rows_of_plain_values(root):
    rows = Result.open(root).leaderboard()
    assert [row["rank"] for row in rows] == [1, 2, 3]
    assert list(rows[0]) == [
        *("rank", "trial", "status", "train_loss", "val_loss", "val_accuracy", "epoch"),
        *("epochs", "params.lr", "error"),
    ]
    assert json.loads(json.dumps(rows)) == rows


def test_the_leaderboard_is_a_table_to_look_at(root):
    board = Result.open(root).leaderboard()
    lines = str(board).splitlines()
    assert lines[0].split() == ["rank", "trial", "val_loss", "epoch", "lr", "status"]
    assert len(lines) == 4
    assert repr(board) == str(board)


@pytest.mark.parametrize("mode", Mode)
def test_equal_trials_are_ranked_by_their_number(tmp_path, mode):
    columns = {"x": np.ones((12, 2), np.float32), "y": np.zeros(12, np.int64)}
    from_arrays(tmp_path / "data", train=columns, shards=2, validation=0.3)
    spec = toy_spec(tmp_path / "data", {"lr": [0.3, 0.1, 0.2]}, metric="val_accuracy", mode=mode)
    fit_toy(tmp_path / "run", spec, task=ToyTask(classes=1))
    result = Result.open(tmp_path / "run")
    assert {row["val_accuracy"] for row in result.leaderboard()} == {1.0}
    assert [row["trial"] for row in result.leaderboard()] == ["t0000", "t0001", "t0002"]
    assert (result.best.id, result.best.epoch) == ("t0000", 0)


def test_trials_that_failed_or_diverged_come_last_and_have_no_rank(home, tmp_path):
    result = fit_kinds(home, tmp_path)
    rows = result.leaderboard()
    assert [(row["rank"], row["trial"], row["status"]) for row in rows] == [
        (1, "t0000", "finished"),
        (None, "t0001", "failed"),
        (None, "t0002", "diverged"),
    ]
    assert rows[1]["error"].startswith("ValueError: this trial raises on purpose (2 attempts")
    assert rows[2]["error"] == "loss is nan at step 0 of the visit"
    assert (rows[1]["epoch"], rows[2]["epoch"]) == (0, None)
    assert result.best.id == "t0000"


def test_a_trial_that_failed_says_where(home, tmp_path):
    failed = fit_kinds(home, tmp_path).trials[1]
    assert failed.traceback is not None
    assert "in strike" in failed.traceback
    assert "Traceback" not in repr(failed)


def test_without_a_healthy_trial_there_is_no_best_and_the_errors_say_why(home, tmp_path):
    fit_toy(tmp_path / "run", toy_spec(home / "data", {"fail": ["raise", "nan_loss"], "lr": 0.5}))
    result = Result.open(tmp_path / "run")
    assert result.is_finished
    with pytest.raises(UsageError, match="this trial raises on purpose") as caught:
        _ = result.best
    assert "loss is nan" in str(caught.value)


def test_digests_tell_runs_apart(home, root, tmp_path):
    spec = toy_spec(home / "data", {"lr": LRS}, epochs=3)
    fit_toy(tmp_path / "same", spec, workers=3)
    fit_toy(tmp_path / "other", toy_spec(home / "data", {"lr": LRS}, epochs=3, seed=1))
    assert Result.open(tmp_path / "same").digest() == Result.open(root).digest()
    assert Result.open(tmp_path / "other").digest() != Result.open(root).digest()


# Models


def test_the_best_model_is_that_of_the_best_epoch(home, tmp_path):
    """With a step far too long the loss goes up again."""
    fit_toy(tmp_path / "run", toy_spec(home / "data", {"lr": [30.0, 20.0, 10.0]}, epochs=4))
    result = Result.open(tmp_path / "run")
    trial = next(trial for trial in result if trial.epoch not in (None, 3))
    shard = open_dataset(home / "data").open_shard("val", 0)
    x, y = shard.columns["x"], shard.columns["y"]

    def accuracy(model):
        return (model.scores(x).argmax(1) == y).mean()

    history = result.history(trial.id)
    assert accuracy(result.load(trial.id)) == pytest.approx(trial.metrics["val_accuracy"])
    final = result.load(trial.id, which="final")
    assert accuracy(final) == pytest.approx(history[-1]["val_accuracy"])
    assert not np.array_equal(final.weight, result.load(trial.id).weight)


def test_a_model_is_loaded_with_a_task_that_is_given(root):
    named, given = Result.open(root), Result.open(root, task=ToyTask())
    expected = named.load(0).weight
    assert np.array_equal(given.load(0).weight, expected)
    assert np.array_equal(named.load("t0000", task=ToyTask()).weight, expected)


MODULE = """
from cerebro.testing.toy import ToyTask
class Mine(ToyTask):
    def __init__(self):
        super().__init__()
        self.is_made_anew = True
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "mine_for_results.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "mine_for_results"
    sys.modules.pop("mine_for_results", None)


def test_a_model_is_loaded_with_the_task_that_the_run_names(home, tmp_path, module):
    fit_toy(tmp_path / "run", toy_spec(home / "data"), task=f"{module}:Mine")
    result = Result.open(tmp_path / "run")
    assert result.document.task == "mine_for_results:Mine"
    assert result.load("t0001").weight.shape == (4, 3)


def test_a_task_that_is_gone_can_still_be_given(home, tmp_path, module):
    fit_toy(tmp_path / "run", toy_spec(home / "data"), task=f"{module}:Mine")
    (tmp_path / "mine_for_results.py").unlink()
    del sys.modules[module]
    result = Result.open(tmp_path / "run")
    with pytest.raises(UsageError, match="'mine_for_results:Mine' cannot be imported"):
        result.load(0)
    assert result.load(0, task=ToyTask()).weight.shape == (4, 3)


def test_a_task_from_a_notebook_must_be_given(home, tmp_path):
    class Mine(ToyTask):
        pass

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    fit_toy(tmp_path / "run", toy_spec(home / "data"), task=Mine())
    result = Result.open(tmp_path / "run")
    with pytest.raises(UsageError, match=r"__main__:Mine lived in a script or notebook: .* task="):
        result.load(0)
    assert result.load(0, task=Mine()).weight.shape == (4, 3)
    with pytest.raises(UsageError, match=r"--task file\.py:Class"):
        result.task_name()


def test_the_best_trial_can_be_named_so(root, tmp_path):
    result = Result.open(root)
    assert result.member("best") == result.member(result.best.number)
    assert result.history("best") == result.history(result.best.id)
    path = result.export("best", path=tmp_path / "best.safetensors")
    assert path == str(tmp_path / "best.safetensors")


def test_a_result_says_what_it_is_in_one_line(root):
    best = Result.open(root).best
    value = f"{best.metrics['val_loss']:.4g}"
    said = f"Result({root}: 3 trials, best {best.id} with val_loss {value})"
    assert repr(Result.open(root)) == said


def test_a_result_shows_curves_and_leaderboard(root):
    page = Result.open(root)._repr_html_()
    assert page.count("<polyline") == 6
    assert "<td>t0001</td>" in page


def test_a_result_without_an_epoch_shows_itself_too(home, tmp_path):
    fit_until(tmp_path / "run", toy_spec(home / "data"), 1, "driver", trial=None)
    result = Result.open(tmp_path / "run")
    assert repr(result) == f"Result({tmp_path / 'run'}: 2 trials, not finished)"
    assert "not finished" in result._repr_html_()


def test_a_state_of_another_kind_than_best_and_final_does_not_exist(root):
    with pytest.raises(UsageError, match="`which` must be 'best' or 'final', but got 'last'"):
        Result.open(root).load(0, which="last")


@pytest.mark.parametrize("which", ["best", "final"])
def test_a_model_that_was_not_kept_says_why(home, tmp_path, which):
    spec = toy_spec(home / "data", checkpoint=Checkpointing.OFF)
    fit_toy(tmp_path / "off", spec)
    with pytest.raises(UsageError, match=r"t0000 must have a checkpoint .*checkpoint='off'"):
        Result.open(tmp_path / "off").load(0, which=which)
    fit_toy(tmp_path / "top", toy_spec(home / "data"), keep_top=1)
    result = Result.open(tmp_path / "top")
    worst = result.leaderboard()[-1]["trial"]
    with pytest.raises(UsageError, match="keep_top"):
        result.load(worst, which=which)
    assert result.load(result.best.id, which=which).weight.shape == (4, 3)


def test_the_model_of_a_trial_that_diverged_later_is_its_last_finite_one(home, tmp_path):
    late = {"kind": "nan_state", "epoch": 1, "step": 1}
    fit_toy(tmp_path / "run", toy_spec(home / "data", {"fail": {"constant": late}, "lr": 0.5}))
    result = Result.open(tmp_path / "run")
    assert result.trials[0].status is TrialStatus.DIVERGED
    assert np.isfinite(result.load(0, which="final").weight).all()


def test_a_damaged_model_is_refused(copy):
    for path in copy.rglob("*.safetensors"):
        path.write_bytes(flip_bit(path.read_bytes(), 4711))
    with pytest.raises(CheckpointCorruptError, match="SHA-256"):
        Result.open(copy).load(0)
