from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from cerebro.testing.tracker_contract import Shape, resumed_run, small_run, started
from cerebro.track.files import FileTracker, leaderboard_csv
from cerebro.track.ranking import Criteria, TrialRow, rank
from cerebro.track.records import EpochFinished, Record, TrialAdded, TrialFinished
from cerebro.types import Mode, Params, TrialStatus


def feed(directory: Path, records: list[Record]) -> None:
    tracker = FileTracker(directory)
    for record in records:
        tracker.record(record)
    tracker.close()


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def ended(epoch: int, **metrics: float) -> EpochFinished:
    return EpochFinished(trial=0, epoch=epoch, metrics=metrics, seconds=0.5)


def test_progress_has_one_row_an_epoch(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    rows = table(tmp_path / "trials/t0001/progress.csv")
    assert [row["epoch"] for row in rows] == ["0", "1"]
    assert [float(row["val_accuracy"]) for row in rows] == [0.6, 0.61]


def test_a_metric_that_appears_later_gets_a_column_and_old_rows_stay(tmp_path: Path) -> None:
    feed(tmp_path, [TrialAdded(trial=0, params={}), ended(0, a=1.0), ended(1, b=2.0)])
    rows = table(tmp_path / "trials/t0000/progress.csv")
    assert rows[0] == {"epoch": "0", "seconds": "0.5", "a": "1.0", "b": ""}
    assert rows[1] == {"epoch": "1", "seconds": "0.5", "a": "", "b": "2.0"}


def test_params_are_json(tmp_path: Path) -> None:
    params: Params = {"lr": 0.1, "name": "ü", "layers": [1, 2], "none": None}
    feed(tmp_path, [TrialAdded(trial=0, params=params)])
    assert json.loads((tmp_path / "trials/t0000/params.json").read_text()) == params


def test_the_leaderboard_is_best_first(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    rows = table(tmp_path / "leaderboard.csv")
    assert [(row["rank"], row["trial"]) for row in rows] == [
        ("1", "t0002"),
        ("2", "t0001"),
        ("3", "t0000"),
    ]
    assert float(rows[0]["val_accuracy"]) == 0.71
    assert float(rows[0]["params.lr"]) == pytest.approx(0.01)


def test_a_failed_trial_comes_last_without_a_rank_and_with_its_error(tmp_path: Path) -> None:
    records: list[Record] = [started()]
    for trial in (0, 1):
        records.append(TrialAdded(trial=trial, params={}))
        value = {"val_accuracy": 0.9 - trial / 10}
        records.append(EpochFinished(trial=trial, epoch=0, metrics=value, seconds=1.0))
    records.append(TrialFinished(trial=0, status=TrialStatus.DIVERGED, error="loss is nan"))
    feed(tmp_path, records)
    first, last = table(tmp_path / "leaderboard.csv")
    assert (first["trial"], first["rank"]) == ("t0001", "1")
    assert (last["trial"], last["rank"], last["status"]) == ("t0000", "", "diverged")
    assert last["error"] == "loss is nan"


def test_the_leaderboard_has_the_metrics_of_the_best_epoch(tmp_path: Path) -> None:
    best, last = ended(0, val_accuracy=0.9, val_loss=0.1), ended(1, val_accuracy=0.8, val_loss=0.2)
    feed(tmp_path, [started(), TrialAdded(trial=0, params={}), best, last])
    (row,) = table(tmp_path / "leaderboard.csv")
    assert (row["val_accuracy"], row["val_loss"]) == ("0.9", "0.1")
    assert (row["epoch"], row["epochs"]) == ("0", "2")


def test_columns_of_the_leaderboard_stand_by_kind(tmp_path: Path) -> None:
    rows = [
        TrialRow(trial=0, params={"lr": 0.1}),
        TrialRow(trial=1, params={"layers": [1]}, metrics={"val_loss": 0.5}),
    ]
    header = "rank,trial,status,val_loss,epoch,epochs,params.lr,params.layers,error"
    ranking = rank(rows, Criteria(metric="val_loss", mode=Mode.MIN))
    assert leaderboard_csv(ranking).splitlines()[0] == header


def test_the_leaderboard_is_written_at_most_once_a_second(tmp_path: Path) -> None:
    now = 0.0
    tracker = FileTracker(tmp_path, clock=lambda: now)
    tracker.record(started())
    tracker.record(TrialAdded(trial=0, params={}))
    tracker.record(ended(0, val_accuracy=0.1))
    first = (tmp_path / "leaderboard.csv").read_text()
    tracker.record(ended(1, val_accuracy=0.2))
    assert (tmp_path / "leaderboard.csv").read_text() == first
    now = 60.0
    tracker.record(ended(2, val_accuracy=0.3))
    assert "0.3" in (tmp_path / "leaderboard.csv").read_text()


def many(count: int) -> list[Record]:
    records: list[Record] = [started(shape=Shape(trials=count))]
    records += [TrialAdded(trial=trial, params={}) for trial in range(count)]
    return records


@pytest.mark.parametrize(("count", "rows"), [(64, 2), (65, 1)])
def test_progress_of_many_trials_is_held_back_for_a_second(
    tmp_path: Path, count: int, rows: int
) -> None:
    now = 0.0
    tracker = FileTracker(tmp_path, clock=lambda: now)
    for record in [*many(count), ended(0, val_accuracy=0.1), ended(1, val_accuracy=0.2)]:
        tracker.record(record)
    path = tmp_path / "trials/t0000/progress.csv"
    assert len(table(path)) == rows
    now = 60.0
    tracker.record(ended(2, val_accuracy=0.3))
    assert [row["epoch"] for row in table(path)] == ["0", "1", "2"]


def test_what_is_held_back_is_written_when_asked(tmp_path: Path) -> None:
    tracker = FileTracker(tmp_path, clock=lambda: 0.0)
    for record in [*many(65), ended(0, val_accuracy=0.1), ended(1, val_accuracy=0.2)]:
        tracker.record(record)
    tracker.flush()
    assert len(table(tmp_path / "trials/t0000/progress.csv")) == 2
    assert "0.2" in (tmp_path / "leaderboard.csv").read_text()


def test_an_epoch_without_metrics_is_a_row_too(tmp_path: Path) -> None:
    feed(tmp_path, [TrialAdded(trial=0, params={}), ended(0), ended(1), ended(2, a=1.0)])
    rows = table(tmp_path / "trials/t0000/progress.csv")
    assert [(row["epoch"], row["a"]) for row in rows] == [("0", ""), ("1", ""), ("2", "1.0")]


def test_a_run_in_stacks_has_the_same_tables(tmp_path: Path) -> None:
    feed(tmp_path / "alone", list(small_run()))
    feed(tmp_path / "stacked", list(small_run(shape=Shape(stack=3))))
    for name in ("leaderboard.csv", "trials/t0000/progress.csv", "trials/t0002/params.json"):
        assert (tmp_path / "alone" / name).read_text() == (tmp_path / "stacked" / name).read_text()


def test_a_resumed_run_ends_with_the_same_tables(tmp_path: Path) -> None:
    feed(tmp_path / "whole", list(small_run()))
    feed(tmp_path / "cut", list(small_run())[:29])
    feed(tmp_path / "cut", list(resumed_run()))
    for name in ("leaderboard.csv", "trials/t0000/progress.csv", "trials/t0002/params.json"):
        assert (tmp_path / "cut" / name).read_text() == (tmp_path / "whole" / name).read_text()


def test_an_interrupted_run_leaves_all_files(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run())[:20])
    names = {path.name for path in tmp_path.iterdir()}
    assert {"leaderboard.csv", "trace.json", "report.html", "trials"} <= names


def test_no_temporary_file_is_left(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    assert not [path for path in tmp_path.rglob("*") if path.name.startswith(".tmp")]


def test_the_trace_has_one_lane_a_worker_and_one_slice_a_visit(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run()))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = {e["args"]["name"] for e in events if e["name"] == "thread_name"}
    slices = [e for e in events if e["ph"] == "X"]
    assert lanes == {"worker 0", "worker 1"}
    assert len(slices) == 18
    assert slices[0]["args"] == {
        "trial": 0,
        "epoch": 0,
        "shard": 0,
        "phase": "train",
        "compute_ms": 95.0,
        "data_ms": 1.0,
        "hop_ms": 2.0,
        "comm_ms": 0.0,
        "rows": 64,
    }
    assert slices[0]["ts"] == 1e6
    assert slices[0]["dur"] == pytest.approx(1e5)


def test_a_visit_of_a_stack_is_one_slice_that_says_what_it_is(tmp_path: Path) -> None:
    feed(tmp_path, list(small_run(shape=Shape(stack=2))))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    slices = [e for e in events if e["ph"] == "X"]
    assert len(slices) == 12
    assert {e["name"] for e in slices if e["args"]["trial"] == 2} == {"t0002"}
    stacked = [e for e in slices if e["args"]["trial"] == 0]
    assert stacked[1]["name"] == "t0000 +1 e0 s1"
    assert stacked[1]["args"] == {
        "trial": 0,
        "members": 2,
        "trials": "t0000..t0001",
        "epoch": 0,
        "shard": 1,
        "phase": "train",
        "compute_ms": 95.0,
        "data_ms": 1.0,
        "hop_ms": 2.0,
        "comm_ms": 0.0,
        "rows": 64,
    }


def test_a_worker_without_a_visit_has_a_lane_too(tmp_path: Path) -> None:
    feed(tmp_path, [started()])
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    lanes = [e["args"]["name"] for e in events if e["name"] == "thread_name"]
    assert lanes == ["worker 0", "worker 1"]


def test_the_trace_of_a_resumed_run_says_where_it_begins(tmp_path: Path) -> None:
    feed(tmp_path, list(resumed_run()))
    trace = json.loads((tmp_path / "trace.json").read_text())
    assert trace["otherData"]["resumed"] is True
    assert trace["traceEvents"][0]["args"]["name"].endswith(", since the last resume")
