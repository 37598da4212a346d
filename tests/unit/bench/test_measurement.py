"""What is read from a run."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cerebro.bench.cases import gather
from cerebro.bench.measurement import PARTS, global_batch, read_measurement, read_node
from cerebro.bench.sweep import Setting
from cerebro.bench.tables import split_table
from cerebro.bench.words import sentences
from cerebro.track.files import FileTracker
from tests.experiments import fit_toy, make_toy_data, toy_spec
from tests.unit.bench import made


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """A finished run of two trials, two epochs, two shards, with the files that trackers write."""
    make_toy_data(tmp_path / "data")
    root = tmp_path / "run"
    spec = toy_spec(tmp_path / "data", stack=False)
    fit_toy(root, spec, trackers=[FileTracker(root)])
    return root


TOLD = {"status": "done", "began": 0.0, "seconds": 60.0}


def test_the_split_adds_up_to_what_the_workers_had(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    assert measured.is_done
    assert tuple(measured.parts) == PARTS
    trace = json.loads((run / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    trained, judged = (
        [event for event in trace if event["ph"] == "X" and is_training(event) is wanted]
        for wanted in (True, False)
    )
    seconds = {
        part: sum(event["args"][f"{part}_ms"] for event in trained) / 1e3
        for part in ("data", "compute")
    }
    assert measured.parts["data"] == pytest.approx(seconds["data"])
    assert measured.parts["compute"] == pytest.approx(seconds["compute"])
    assert measured.parts["communication"] == 0
    assert measured.parts["validation"] == pytest.approx(sum(e["dur"] for e in judged) / 1e6)
    busy = sum(event["dur"] for event in trained) / 1e6
    assert 0 < seconds["compute"] < busy
    assert sum(seconds.values()) + measured.parts["hop"] >= busy - 1e-6
    assert sum(measured.parts.values()) == pytest.approx(measured.training_s, rel=0.05)


def is_training(event: dict[str, Any]) -> bool:
    return bool(event["args"]["phase"] == "train")


def test_steps_and_rows_are_those_of_all_visits(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    # Of 96 rows a quarter is held back: 36 a shard are 3 steps; 2 trials, 2 epochs, 2 shards.
    assert measured.steps == 3 * 2 * 2 * 2
    assert [point.samples for point in measured.curve] == [72, 144]
    assert measured.shards == (36, 36)
    assert measured.valid_rows == 24
    assert measured.samples_per_s > 0


def test_steps_go_by_the_batch_size_of_each_trial(tmp_path: Path) -> None:
    make_toy_data(tmp_path / "data")
    space = {"lr": 0.1, "batch_size": [16, 36]}
    spec = toy_spec(tmp_path / "data", space, batch_size=None, stack=False)
    fit_toy(tmp_path / "run", spec, trackers=[FileTracker(tmp_path / "run")])
    measured = read_measurement(Setting(), TOLD, tmp_path / "run", [])
    assert measured.steps == (3 + 1) * 2 * 2


def test_where_nobody_knows_the_batch_size_steps_are_not_known() -> None:
    assert global_batch({"lr": 0.1}, {"batch_size": None}) is None
    unknown = replace(made.measured(Setting()), steps=None)
    assert all(math.isnan(ms) for ms in unknown.step_ms.values())
    (_, row) = split_table(gather([unknown]))
    assert set(row[1:]) == {"-"}
    assert "nan" not in " ".join(sentences(gather([unknown]), cores=2, is_simulated=True))


def test_the_curve_is_that_of_the_best_trial(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    assert (measured.metric, str(measured.mode)) == ("val_loss", "min")
    assert measured.best == min(point.value for point in measured.curve)
    seconds = [point.seconds for point in measured.curve]
    assert 0 < seconds[0] < seconds[1] <= measured.training_s + 0.01


def test_the_loss_of_validation_is_read_beside_the_metric(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    assert [point.loss for point in measured.curve] == [point.value for point in measured.curve]


def test_what_is_told_of_threads_is_what_the_run_used(tmp_path: Path) -> None:
    make_toy_data(tmp_path / "data")
    root = tmp_path / "run"
    fit_toy(root, toy_spec(tmp_path / "data", threads_per_worker=3), trackers=[FileTracker(root)])
    assert read_measurement(Setting(batch=16), TOLD, root, []).threads == 3


@pytest.mark.parametrize(
    ("params", "is_scaled"),
    [
        ({}, False),
        ({"optimizer.lr_scaling": "none", "training.lr_warmup_epochs": 0}, False),
        ({"optimizer.lr_scaling": "linear"}, True),
        ({"optimizer.lr_scaling": "none", "training.lr_warmup_epochs": 2}, True),
    ],
    ids=["own task", "recipe", "scaled", "warmed up"],
)
def test_rates_that_follow_the_number_of_processes_are_noticed(
    params: dict[str, Any], is_scaled: bool, tmp_path: Path
) -> None:
    make_toy_data(tmp_path / "data")
    root = tmp_path / "run"
    space = {"lr": 0.1, **params}
    fit_toy(root, toy_spec(tmp_path / "data", space), trackers=[FileTracker(root)])
    assert read_measurement(Setting(batch=16), TOLD, root, []).is_rate_scaled is is_scaled


def test_what_failed_says_why_and_has_no_times(tmp_path: Path) -> None:
    told = {"status": "failed", "error": "no memory"}
    measured = read_measurement(Setting(), told, tmp_path, [])
    assert (measured.is_done, measured.error) == (False, "no memory")


def test_samples_of_a_node_that_was_killed_are_read_up_to_the_last_whole_row(
    tmp_path: Path,
) -> None:
    path = tmp_path / "resources.csv"
    path.write_text(
        "time,host,what,value\n101.0,a,cpu/tree,50\n102.0,a,cpu/tree,70\n103.0,a,cpu/tr"
    )
    node = read_node("node 0", path, began=100.0)
    assert node.series["cpu/tree"] == ((1.0, 2.0), (50.0, 70.0))
    assert (node.mean("cpu/tree"), node.peak("cpu/tree")) == (60.0, 70.0)


@pytest.mark.parametrize("left", ["103.0,a,cpu/tree,", "103.0,a,cpu/tree,7"])
def test_a_value_that_was_cut_off_is_none(tmp_path: Path, left: str) -> None:
    path = tmp_path / "resources.csv"
    path.write_text(f"time,host,what,value\n101.0,a,cpu/tree,50\n{left}")
    assert read_node("node 0", path, began=100.0).values("cpu/tree") == (50.0,)


def test_a_mean_is_of_the_time_that_it_trained(tmp_path: Path) -> None:
    path = tmp_path / "resources.csv"
    rows = "".join(f"{10 + second},a,cpu/tree,{10 * second}\n" for second in range(5))
    path.write_text(f"time,host,what,value\n{rows}")
    assert read_node("a", path, 10.0, (2.0, 4.5)).mean("cpu/tree") == 30.0
    # Too short to tell it from what came before and after.
    assert read_node("a", path, 10.0, (3.5, 4.5)).mean("cpu/tree") == 20.0
    assert read_node("a", path, 10.0, (8.0, 9.0)).mean("cpu/tree") == 20.0
