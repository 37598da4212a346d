"""`cerebro export`, `cerebro test` and `cerebro predict`."""

from __future__ import annotations

import json

import pytest
from safetensors import deserialize
from typer.testing import CliRunner

from cerebro.cli.app import app
from cerebro.testing.toy import ToyTask
from tests.experiments import fast_folder, fit_toy, toy_spec
from tests.scored import trained_run


@pytest.fixture(scope="module")
def run():
    with fast_folder() as folder:
        yield trained_run(folder)


def call(*words):
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_trial_is_exported_and_the_path_printed(run, tmp_path):
    path = tmp_path / "deep" / "best.safetensors"
    done = call("export", run, "best", "--output", path)
    assert done.exit_code == 0, done.output
    assert done.stdout.strip() == str(path)
    assert {name for name, _ in deserialize(path.read_bytes())} == {"weight", "bias"}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["t0009"], "unknown trial"),
        (["0", "--to", "pickle"], "safetensors, onnx, torch-export"),
        (["0", "--which", "worst"], "`which` must be"),
    ],
)
def test_what_cannot_be_exported_is_told(run, words, told, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = call("export", run, *words)
    assert done.exit_code == 2
    assert told in done.stderr


@pytest.fixture(scope="module")
def notebook_run(run):
    """The run of a class that lived in a notebook."""

    class Mine(ToyTask):
        pass

    Mine.__module__, Mine.__qualname__ = "__main__", "Mine"
    folder = run.parent
    fit_toy(folder / "mine", toy_spec(folder / "data"), task=Mine())
    return folder / "mine"


COMMANDS = (["export", "best"], ["test", "best"], ["predict", "0"])


@pytest.mark.parametrize("words", COMMANDS)
def test_a_task_that_lived_in_a_notebook_must_be_named(notebook_run, words):
    done = call(words[0], notebook_run, words[1])
    assert done.exit_code == 2
    assert "--task file.py:Class" in done.stderr


@pytest.mark.parametrize("words", COMMANDS)
@pytest.mark.parametrize("task", ["mine.py:Mine", "cerebro.testing.toy:ToyTask"])
def test_a_task_can_be_named(notebook_run, words, task, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text = "from cerebro.testing.toy import ToyTask\nclass Mine(ToyTask): pass\n"
    (tmp_path / "mine.py").write_text(text)
    more = [] if words[0] == "export" else ["--workers", 1, "--device", "cpu"]
    done = call(words[0], notebook_run, words[1], "--task", task, *more)
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize(
    ("task", "told"),
    [
        ("Mine", "module:Class"),
        ("no.py:Mine", "does not exist"),
        ("cerebro.types:Mode", "must name a subclass"),
    ],
)
def test_a_task_that_is_none_is_told(notebook_run, task, told):
    done = call("export", notebook_run, "best", "--task", task)
    assert done.exit_code == 2
    assert told in done.stderr


def test_the_best_trial_is_shown_by_that_name(run):
    done = call("results", run, "--trial", "best")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("t000")


def test_models_are_tested(run):
    done = call("test", run, 0, "t0001", "--json", "--workers", 1, "--device", "cpu")
    assert done.exit_code == 0, done.output
    rows = json.loads(done.stdout)
    assert [row["model"] for row in rows] == ["t0000", "t0001"]
    assert set(rows[0]["metrics"]) == {"loss", "accuracy"}


def test_predictions_are_written_and_shown(run, tmp_path):
    done = call("predict", run, "-o", tmp_path, "--split", "test", "--workers", 1)
    assert done.exit_code == 0, done.output
    assert "test: 53 rows" in done.stdout
    assert (tmp_path / "predictions.csv").read_text().splitlines()[1].startswith('"r1000",')
