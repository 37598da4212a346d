"""`cerebro data`, as people use it."""

from __future__ import annotations

import pytest
from typer.testing import CliRunner

from cerebro.cli.app import app
from cerebro.data import open_dataset
from cerebro.data.named import DATASETS
from tests import named as files


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    """No files of whoever runs the tests are found."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("CEREBRO_DATA", str(tmp_path / "data"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(DATASETS, "tiny", files.tiny())


def data(*arguments):
    return CliRunner().invoke(app, ["data", *map(str, arguments)])


def line_of(output: str, name: str) -> str:
    (line,) = (line for line in output.splitlines() if line.startswith(f"{name} "))
    return line


def test_a_data_set_is_got_prepared_and_listed(tmp_path):
    assert line_of(data("list").output, "tiny").split()[1:6] == ["32", "+", "8", "-", "-"]
    with files.serving() as server:
        got = data("get", "tiny", "--from", server.url)
    assert got.exit_code == 0, got.output
    assert str(tmp_path / "data/tiny") in got.stdout
    made = data("prepare", "tiny", "shards=4", "n_train=20")
    assert made.exit_code == 0, made.output
    dataset = open_dataset(made.stdout.strip())
    assert dataset.rows("train") == 20
    assert len(dataset.shards("train")) == 4
    assert "preparing tiny" in made.stderr
    listed = line_of(data("list").output, "tiny")
    assert listed.split()[4:6] == [str(tmp_path / "data/tiny"), "1"]


def test_options_are_read_as_in_experiment_files(tmp_path):
    made = data("prepare", "dummy", "input_shape=[4, 4, 3]", "n_train=8", "--into", tmp_path / "p")
    assert made.exit_code == 0, made.output
    assert open_dataset(made.stdout.strip()).schema["x"].shape == (3, 4, 4)


def test_a_source_can_be_named(tmp_path):
    files.write_mnist(tmp_path / "mine")
    made = data("prepare", "mnist", "--source", tmp_path / "mine")
    assert made.exit_code == 0, made.output


def test_no_network_is_an_error_with_exit_code_1():
    done = data("get", "tiny", "--from", "http://127.0.0.1:9")
    assert done.exit_code == 1
    assert "could not be fetched from http://127.0.0.1:9/a.bin" in done.stderr


WRONG = {
    "unknown": (["get", "tinny"], "Did you mean 'tiny'"),
    "missing": (["prepare", "mnist"], "cerebro data get mnist"),
    "no value": (["prepare", "dummy", "shards"], "KEY=VALUE"),
    "unknown option": (["prepare", "dummy", "rows=3"], "Its options"),
    "nothing to get": (["get", "dummy"], "nothing to get"),
}


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_done_is_said_with_exit_code_2(case):
    arguments, message = WRONG[case]
    done = data(*arguments)
    assert done.exit_code == 2
    assert message in done.stderr
