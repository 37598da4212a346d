from __future__ import annotations

import base64
import json
import math
import re
import shutil
import subprocess
from array import array
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from cerebro.testing.tracker_contract import Shape, resumed_run, small_run, started
from cerebro.track.board import Board
from cerebro.track.history import History
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    TrialAdded,
    TrialChanged,
    TrialFinished,
    VisitFinished,
)
from cerebro.track.report import VALUES_SHOWN, VISITS_SHOWN, report_data, write_report
from cerebro.types import Mode, TrialStatus

PAGE = Path(__file__).with_name("page.js")


def page_of(tmp_path: Path, records: list[Record]) -> str:
    board, history = Board(), History()
    for record in records:
        board.record(record)
        history.record(record)
    path = tmp_path / "report.html"
    write_report(path, board, history, None)
    return path.read_text(encoding="utf-8")


def data_of(page: str) -> dict[str, object]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    data = json.loads(found[1], parse_constant=lambda name: (_ for _ in ()).throw(ValueError(name)))
    assert isinstance(data, dict)
    return data


def unpack(text: str) -> list[float]:
    values: list[float] = np.frombuffer(base64.b64decode(text), dtype="<f4").tolist()
    return values


def test_the_page_refers_to_nothing_outside_itself(tmp_path: Path) -> None:
    page = page_of(tmp_path, list(small_run()))
    assert not re.search(r"(src|href)=|@import|url\(|fetch\(", page)
    assert set(re.findall(r"https?://[^\"]*", page)) == {"http://www.w3.org/2000/svg"}


def test_the_page_holds_all_trials_curves_and_visits(tmp_path: Path) -> None:
    data = data_of(page_of(tmp_path, list(small_run())))
    trials, visits = data["trials"], data["visits"]
    assert isinstance(trials, list)
    assert isinstance(visits, dict)
    assert [trial["id"] for trial in trials] == ["t0002", "t0001", "t0000"]
    assert unpack(trials[0]["curves"]["val_accuracy"]) == pytest.approx([0.7, 0.71])
    assert len(visits["stack"]) == len(visits["start"]) == 18


def test_names_cannot_break_out_of_the_data(tmp_path: Path) -> None:
    evil = "</script><script>alert(1)</script><!--"
    page = page_of(tmp_path, [TrialAdded(trial=0, params={evil: evil})])
    assert "alert(1)</script>" not in page
    assert page.count("<script") == 2
    trials = data_of(page)["trials"]
    assert isinstance(trials, list)
    assert trials[0]["params"] == {evil: evil}


def test_the_page_never_turns_text_into_markup(tmp_path: Path) -> None:
    page = page_of(tmp_path, [])
    assert not re.search(r"innerHTML|outerHTML|insertAdjacent|document\.write|eval\(", page)


def test_values_that_are_not_finite_become_gaps(tmp_path: Path) -> None:
    metrics = {"m": math.nan, "n": math.inf}
    record = EpochFinished(trial=0, epoch=0, metrics=metrics, seconds=1.0)
    trials = data_of(page_of(tmp_path, [TrialAdded(trial=0, params={"x": math.nan}), record]))[
        "trials"
    ]
    assert isinstance(trials, list)
    assert all(math.isnan(*unpack(trials[0]["curves"][name])) for name in ("m", "n"))


def test_of_too_many_visits_the_last_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    visit = next(r for r in small_run() if type(r).__name__ == "VisitFinished")
    data = data_of(page_of(tmp_path, [visit] * (VISITS_SHOWN + 7)))
    visits = data["visits"]
    assert isinstance(visits, dict)
    assert (len(visits["stack"]), visits["left_out"]) == (VISITS_SHOWN, 7)


def test_the_page_of_a_resumed_run_says_what_its_efficiency_covers() -> None:
    board, history = Board(), History()
    for record in resumed_run():
        board.record(record)
    assert isinstance(record, RunFinished)
    data = report_data(board, history, record.summary)
    assert data["resumed"] is True
    assert isinstance(data["summary"], dict)
    assert str(data["summary"]["line"]).endswith(", since the last resume")


def test_a_visit_of_a_stack_is_one_block_with_all_its_trials(tmp_path: Path) -> None:
    visits = data_of(page_of(tmp_path, list(small_run(shape=Shape(stack=2)))))["visits"]
    assert isinstance(visits, dict)
    assert visits["stacks"] == [[0, 1], [2]]
    assert visits["stack"] == [0, 0, 0, 1, 1, 1] * 2


def long_run(trials: int, epochs: int, *metrics: str) -> tuple[Board, History]:
    """The curves of a long run, without its visits; the higher the number the better."""
    board, history = Board(), History()
    for record in small_run(shape=Shape(trials=trials, stack=256, epochs=1, steps=1)):
        board.record(record)
        history.record(record)
    rng = np.random.default_rng(0)
    for trial in range(trials):
        history.curves[trial] = {name: array("d", rng.random(epochs)) for name in metrics}
    return board, history


def test_the_page_of_1024_trials_and_100_epochs_is_below_3_megabytes(tmp_path: Path) -> None:
    names = ("train_loss", "val_loss", "train_accuracy", "val_accuracy")
    board, history = long_run(1024, 100, *names)
    done = next(r for r in small_run(shape=Shape(stack=3)) if isinstance(r, VisitFinished))
    for number in range(4 * 9 * 100):
        at = 10 * number + 0.1234
        history.timeline.add(replace(done, epoch=99, shard=7, start_s=at, end_s=at + 5))
    write_report(tmp_path / "report.html", board, history, None)
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    data = report_data(board, history, None)
    assert data["curves_left_out"] == 0


def test_of_too_many_curves_those_of_the_best_are_kept_and_the_rest_counted() -> None:
    board, history = long_run(300, VALUES_SHOWN // 200, "val_accuracy")
    data = report_data(board, history, None)
    trials = data["trials"]
    assert isinstance(trials, list)
    kept = [trial["number"] for trial in trials if isinstance(trial, dict) and trial["curves"]]
    assert kept == list(range(299, 99, -1))
    assert data["curves_left_out"] == 100
    assert len(trials) == 300


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
@pytest.mark.parametrize("shape", [Shape(), Shape(trials=1024, stack=256)])
def test_the_script_of_the_page_draws_all_of_it(tmp_path: Path, shape: Shape) -> None:
    page_of(tmp_path, list(small_run(shape=shape)))
    command = ["node", str(PAGE), str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    seen = json.loads(done.stdout)
    assert seen["rows"] == min(200, shape.trials)
    assert seen["rows_after_more"] == min(400, shape.trials)
    size = f"t0000 +{shape.stack - 1}" if shape.stack > 1 else "t0000"
    assert any(text.startswith(f"{size} · epoch 1 · training shard 0") for text in seen["tips"])
    best = f"t{shape.trials - 1:04d}"
    assert seen["legend"][0].split()[0] == best


def searched() -> list[Record]:
    """A run with two objectives and a copy of its first trial."""
    first = replace(started(), objectives=(("train_loss", Mode.MIN),), epochs=3)
    records: list[Record] = [first]
    records += [TrialAdded(trial=trial, params={"lr": 0.1}) for trial in (0, 1)]
    for trial, epoch, value, loss in [(0, 0, 0.5, 0.3), (0, 1, 0.6, 0.2), (1, 0, 0.5, 0.4)]:
        metrics = {"val_accuracy": value, "train_loss": loss}
        records.append(EpochFinished(trial=trial, epoch=epoch, metrics=metrics, seconds=1.0))
    records.append(TrialAdded(trial=2, params={"lr": 0.2}, parent=0, parent_epochs=2))
    metrics = {"val_accuracy": 0.8, "train_loss": 0.9}
    records.append(EpochFinished(trial=2, epoch=2, metrics=metrics, seconds=1.0))
    end = TrialFinished(trial=1, status=TrialStatus.OUT_OF_MEMORY, error="needs 9 GB")
    return [*records, end, TrialChanged(trial=0, status=TrialStatus.PAUSED)]


def test_the_curve_of_a_copy_begins_where_it_was_copied(tmp_path: Path) -> None:
    trials = data_of(page_of(tmp_path, searched()))["trials"]
    assert isinstance(trials, list)
    copy = trials[0]
    assert copy["origin"] == "a copy of t0000 after epoch 2, lr 0.1 -> 0.2"
    first, *rest = unpack(copy["curves"]["val_accuracy"])
    assert math.isnan(first)
    assert rest == pytest.approx([0.6, 0.8])


def test_the_page_of_a_search_has_statuses_in_words_and_the_front(tmp_path: Path) -> None:
    data = data_of(page_of(tmp_path, searched()))
    trials = data["trials"]
    assert isinstance(trials, list)
    assert [trial["status"] for trial in trials] == [
        *("running", "waiting", "out of memory: needs 9 GB")
    ]
    assert [trial["failed"] for trial in trials] == [False, False, True]
    assert [trial["pareto"] for trial in trials] == [True, True, False]
    assert trials[0]["values"] == [0.8, 0.9]
    assert data["objectives"] == [["val_accuracy", "max"], ["train_loss", "min"]]


def test_the_page_of_repeats_has_the_mean_beside_each_trial(tmp_path: Path) -> None:
    records: list[Record] = [replace(started(), repeats=2)]
    for trial, value in enumerate([0.5, 0.7]):
        records.append(TrialAdded(trial=trial, params={}, proposal=0, repeat=trial))
        metrics = {"val_accuracy": value}
        records.append(EpochFinished(trial=trial, epoch=0, metrics=metrics, seconds=1.0))
    trials = data_of(page_of(tmp_path, records))["trials"]
    assert isinstance(trials, list)
    assert [(t["rank"], t["config"], t["mean"]) for t in trials] == [(1, "t0000", "0.6 ± 0.14")] * 2


@pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed")
def test_the_script_draws_the_objectives_against_each_other(tmp_path: Path) -> None:
    page_of(tmp_path, searched())
    command = ["node", str(PAGE), str(tmp_path / "report.html")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["is_front_shown"]


def test_a_page_without_its_script_says_where_the_numbers_are(tmp_path: Path) -> None:
    assert "<noscript>" in page_of(tmp_path, [])
