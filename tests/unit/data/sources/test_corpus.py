"""Every file of the corpus, with every policy: nothing is lost, nothing is read wrongly."""

from __future__ import annotations

import json

import pytest

from cerebro.data.sources.table import read_table
from cerebro.errors import DataError
from cerebro.storage.store import DirectoryStore
from tests.unit.data.sources.corpus import CORPUS

REFUSED = {name: case for name, case in CORPUS.items() if case.refusal is not None}
FLAWED = {name: case for name, case in CORPUS.items() if case.bad}
READ = {name: case for name, case in CORPUS.items() if case.refusal is None}


def write(tmp_path, case):
    file = tmp_path / case.name
    file.write_bytes(case.data)
    return file


@pytest.mark.parametrize("policy", ["fail", "skip", "quarantine"])
@pytest.mark.parametrize("name", REFUSED)
def test_what_can_be_no_table_is_refused(tmp_path, name, policy):
    case = REFUSED[name]
    with pytest.raises(DataError, match=rf"(?s)raw\.{case.name[4:]}.*{case.refusal}"):
        read_table(write(tmp_path, case), columns=case.columns, on_bad_row=policy, max_bad=1.0)


@pytest.mark.parametrize("name", FLAWED)
def test_a_bad_row_is_named_with_file_line_column_and_value(tmp_path, name):
    case = FLAWED[name]
    with pytest.raises(DataError, match=rf"(?s){case.name}{case.message}.*on_bad_row"):
        read_table(write(tmp_path, case), columns=case.columns)


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
@pytest.mark.parametrize("name", READ)
def test_bad_rows_are_left_out_and_all_others_read(tmp_path, name, policy):
    case = READ[name]
    file = write(tmp_path, case)
    raw = read_table(file, columns=case.columns, on_bad_row=policy, max_bad=1.0)
    assert raw.table["id"].to_pylist() == case.good
    assert [(row.line, row.column) for row in raw.bad] == case.bad
    assert raw.rows_in == len(case.good) + len(case.bad)
    assert {place: raw.table[place[0]][place[1]].as_py() for place in case.values} == case.values


@pytest.mark.parametrize("name", [name for name in READ if name not in FLAWED])
def test_what_is_unusual_but_right_is_read_with_the_strictest_policy(tmp_path, name):
    case = READ[name]
    raw = read_table(write(tmp_path, case), columns=case.columns)
    assert raw.table["id"].to_pylist() == case.good
    assert len(raw.bad) == 0


@pytest.mark.parametrize("name", FLAWED)
def test_the_quarantine_holds_every_bad_row_as_it_stood_in_its_file(tmp_path, name):
    case = FLAWED[name]
    file = write(tmp_path, case)
    raw = read_table(file, columns=case.columns, on_bad_row="quarantine", max_bad=1.0)
    raw.bad.write(DirectoryStore(tmp_path / "store"))
    lines = (tmp_path / "store" / "bad_rows.jsonl").read_text().splitlines()
    written = [json.loads(line) for line in lines]
    assert [(row["line"], row["column"]) for row in written] == case.bad
    assert all(row["file"] == str(file) and row["reason"] and row["text"] for row in written)


def test_the_text_in_quarantine_is_the_line_of_the_file(tmp_path):
    case = CORPUS["id twice"]
    raw = read_table(write(tmp_path, case), on_bad_row="quarantine", max_bad=1.0)
    assert [row.text for row in raw.bad] == ["1,2.5,b", "7,7.5,t7"]


def test_the_corpus_has_its_thirty_bad_files():
    assert len(REFUSED) + len(FLAWED) >= 30
