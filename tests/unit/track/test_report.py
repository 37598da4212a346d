from __future__ import annotations

import json
import math
import re
from pathlib import Path

from cerebro.testing.tracker_contract import resumed_run, small_run
from cerebro.track.board import Board
from cerebro.track.history import History
from cerebro.track.records import EpochFinished, Record, RunFinished, TrialAdded
from cerebro.track.report import VISITS_SHOWN, report_data, write_report


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
    assert trials[0]["curves"]["val_accuracy"] == [0.7, 0.71]
    assert len(visits["trial"]) == len(visits["start"]) == 18


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
    assert trials[0]["curves"] == {"m": [None], "n": [None]}


def test_of_too_many_visits_the_last_are_kept_and_the_rest_counted(tmp_path: Path) -> None:
    visit = next(r for r in small_run() if type(r).__name__ == "VisitFinished")
    data = data_of(page_of(tmp_path, [visit] * (VISITS_SHOWN + 7)))
    visits = data["visits"]
    assert isinstance(visits, dict)
    assert (len(visits["trial"]), visits["left_out"]) == (VISITS_SHOWN, 7)


def test_the_page_of_a_resumed_run_says_what_its_efficiency_covers() -> None:
    board, history = Board(), History()
    for record in resumed_run():
        board.record(record)
    assert isinstance(record, RunFinished)
    data = report_data(board, history, record.summary)
    assert data["resumed"] is True
    assert isinstance(data["summary"], dict)
    assert str(data["summary"]["line"]).endswith(", since the last resume")
