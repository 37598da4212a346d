"""The benchmark of ETL compares like with like."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from benchmarks import etl_images, etl_predict, etl_table
from benchmarks.etl_rounds import Measured, Side, check_digests, check_same, compete, gain, tell
from benchmarks.etl_side import parts
from benchmarks.etl_tally import COLUMNS, tally_columns
from benchmarks.report import Report
from cerebro.backend.inline import InlineBackend

SIDE = Side("other", "tests.test_benchmark_etl:loses_a_row")


def loses_a_row(work):
    """A side that writes one row less than it should."""
    yield {}
    yield {}
    yield {"rows": work["rows"] - 1}


def table(ids: list[int], value: float = 0.5) -> dict[str, np.ndarray]:
    numbers = np.full(len(ids), value)
    return {"id": np.array(ids), "label": np.ones(len(ids)), **dict.fromkeys(COLUMNS, numbers)}


@pytest.fixture
def pictures() -> tuple[np.ndarray, np.ndarray]:
    x, y = etl_images.load_pictures(None)
    return x[:400], y[:400]


def test_rows_are_cut_into_parts_of_about_one_size():
    assert parts(10, 4) == [slice(0, 2), slice(2, 5), slice(5, 7), slice(7, 10)]


def test_a_tally_does_not_depend_on_the_order_and_sees_doubled_rows():
    one, other = tally_columns([table([0, 1, 2, 3])]), tally_columns([table([3, 1]), table([0, 2])])
    assert (one["rows"], one["sums"]) == (other["rows"], other["sums"])
    assert not one["is_shuffled"]
    assert other["is_shuffled"]
    assert tally_columns([table([0, 0, 3, 3])])["sums"] != one["sums"]
    assert tally_columns([table([0, 1, 2, 3], 0.500001)])["sums"] != one["sums"]


def test_a_side_that_loses_a_row_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="other wrote rows"):
        compete([SIDE], {"rows": 3}, 1, tmp_path, {"rows": 3})


def test_a_side_that_fails_is_quoted(tmp_path):
    with pytest.raises(SystemExit, match=r"(?s)other failed.*KeyError: 'rows'"):
        compete([SIDE], {}, 1, tmp_path, {})


def test_processes_of_one_side_are_added_up():
    halves = Measured(0.0, 1.0, [{"rows": 2, "sums": [1, 2]}, {"rows": 1, "sums": [3, 0]}])
    check_same(SIDE, halves, {"rows": 3, "sums": [4, 2]})
    with pytest.raises(SystemExit, match="sums"):
        check_same(SIDE, halves, {"rows": 3, "sums": [4, 3]})


def test_a_digest_of_something_else_is_refused(tmp_path):
    (tmp_path / "shard").write_bytes(b"rows")
    with pytest.raises(SystemExit, match="not what its digest says"):
        check_digests(SIDE, {str(tmp_path / "shard"): "0" * 64})


def test_ratios_leave_out_the_start_of_processes(capsys):
    report = Report()
    found = {"ours": [Measured(3.0, 2.0, [])], "other": [Measured(0.0, 4.0, [])]}
    tell("case", found, ours="ours", rows=8, size_bytes=8, report=report)
    assert gain(found, "other", "ours") == 2.0
    assert report.values["case_other_vs_ours"] == 2.0
    assert report.values["case_other_vs_ours_whole"] == 0.8
    assert "other" in capsys.readouterr().out


def test_files_are_made_once(pictures, tmp_path):
    work = etl_images.prepare(pictures, 3, tmp_path)
    assert sorted(os.listdir(tmp_path / "pictures" / "000")) == [
        "000000.png",
        "000001.jpg",
        "000002.png",
    ]
    before = Path(work["csv"]).stat().st_mtime_ns
    assert etl_images.prepare(pictures, 3, tmp_path) == work
    assert Path(work["csv"]).stat().st_mtime_ns == before


@pytest.mark.slow
def test_all_sides_make_the_same_shards_of_pictures(pictures, tmp_path):
    work = etl_images.prepare(pictures, 300, tmp_path)
    report = Report()
    assert etl_images.run(work, etl_images.PLAIN, 1, tmp_path, report) > 0
    assert {f"images_{side.name}_s" for side in etl_images.PLAIN} <= report.values.keys()


@pytest.mark.slow
def test_all_sides_make_the_same_shards_of_a_table(tmp_path):
    work = etl_table.prepare(2_000, tmp_path)
    assert etl_table.run(work, etl_table.PLAIN, 1, tmp_path, Report()).keys() == set(etl_table.OURS)


@pytest.mark.slow
def test_one_pass_says_what_eight_say(pictures, tmp_path, monkeypatch):
    monkeypatch.setattr(etl_predict, "MODELS", 2)
    experiment = etl_predict.prepare(pictures, 40, tmp_path, InlineBackend())
    assert etl_predict.run(experiment, 1, Report()) > 0
