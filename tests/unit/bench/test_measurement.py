"""What is read from a run."""

from __future__ import annotations

from pathlib import Path

import pytest

from cerebro.bench.measurement import PARTS, read_measurement, read_node
from cerebro.bench.sweep import Setting
from cerebro.track.files import FileTracker
from tests.experiments import fit_toy, make_toy_data, toy_spec


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
    assert sum(measured.parts.values()) >= 0.9 * measured.training_s
    assert measured.parts["validation"] > 0
    assert measured.parts["communication"] == 0


def test_steps_and_rows_are_those_of_all_visits(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    # Of 96 rows a quarter is held back: 36 a shard are 3 steps; 2 trials, 2 epochs, 2 shards.
    assert measured.steps == 3 * 2 * 2 * 2
    assert [point.samples for point in measured.curve] == [72, 144]
    assert measured.samples_per_s > 0


def test_the_curve_is_that_of_the_best_trial(run: Path) -> None:
    measured = read_measurement(Setting(batch=16), TOLD, run, [])
    assert (measured.metric, str(measured.mode)) == ("val_loss", "min")
    assert measured.best == min(point.value for point in measured.curve)
    seconds = [point.seconds for point in measured.curve]
    assert 0 < seconds[0] < seconds[1] <= measured.training_s + 0.01


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


def test_a_mean_is_of_the_time_that_it_trained(tmp_path: Path) -> None:
    path = tmp_path / "resources.csv"
    rows = "".join(f"{10 + second},a,cpu/tree,{10 * second}\n" for second in range(5))
    path.write_text(f"time,host,what,value\n{rows}")
    assert read_node("a", path, 10.0, (2.0, 3.5)).mean("cpu/tree") == 25.0
    assert read_node("a", path, 10.0, (8.0, 9.0)).mean("cpu/tree") == 20.0
