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

from cerebro.testing.tracker_contract import Shape, resumed_run, small_run
from cerebro.track.board import Board
from cerebro.track.history import History
from cerebro.track.records import EpochFinished, Record, RunFinished, TrialAdded, VisitFinished
from cerebro.track.report import VALUES_SHOWN, VISITS_SHOWN, report_data, write_report

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


def test_a_page_without_its_script_says_where_the_numbers_are(tmp_path: Path) -> None:
    assert "<noscript>" in page_of(tmp_path, [])
