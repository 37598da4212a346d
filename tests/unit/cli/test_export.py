"""`cerebro export`, `cerebro test` and `cerebro predict`."""

from __future__ import annotations

import json

import pytest
from safetensors import deserialize
from typer.testing import CliRunner

from cerebro.cli.app import app
from tests.experiments import fast_folder
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
