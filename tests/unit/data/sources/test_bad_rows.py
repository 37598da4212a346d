"""Policies, limits and reports for rows that cannot be used."""

from __future__ import annotations

import json
import pickle

import pytest

from cerebro.data.sources.bad_rows import BadRow, BadRows, Policy
from cerebro.errors import DataError, UsageError
from cerebro.storage.store import DirectoryStore


def row(line, reason="ValueError: no", **more):
    return BadRow(file="a.csv", line=line, reason=reason, **more)


def test_the_first_bad_row_fails_by_default():
    bad = BadRows()
    with pytest.raises(
        DataError, match=r"a\.csv:3: column 'x' must be int8, but got '999'\. .*skip"
    ):
        bad.add(row(3, "must be int8", column="x", value="999"))
    assert len(bad) == 0


def test_rows_of_workers_are_merged():
    one, two = BadRows(policy="skip"), BadRows(policy="skip")
    one.add(row(1))
    two.extend([row(2), row(3)])
    one.extend(pickle.loads(pickle.dumps(two)))
    assert [bad.line for bad in one] == [1, 2, 3]
    assert pickle.loads(pickle.dumps(one)) == one


@pytest.mark.parametrize(
    ("max_bad", "total", "allowed"), [(0.001, 999, 0), (0.001, 2000, 2), (0, 10, 0), (7, 10, 7)]
)
def test_as_many_may_be_bad_as_the_limit_says(max_bad, total, allowed):
    bad = BadRows(policy="skip", max_bad=max_bad)
    bad.extend(row(line) for line in range(allowed))
    bad.check(total)
    bad.add(row(allowed))
    with pytest.raises(DataError, match=f"At most {allowed} may be .max_bad={max_bad}"):
        bad.check(total)


def test_reasons_are_counted():
    bad = BadRows(policy="skip")
    bad.extend([row(1), row(2, "must be int8", column="x"), row(3)])
    assert bad.counts() == {"ValueError: no": 2, "column 'x' must be int8": 1}
    assert bad.summary(9).splitlines()[0] == "3 of 9 rows are bad:"
    assert BadRows().summary(9) == "none of 9 rows is bad."


def test_the_quarantine_is_a_file_of_json_lines(tmp_path):
    bad = BadRows(policy="quarantine")
    bad.add(row(1, column="x", value="é" * 100, text="1,é\n"))
    bad.add(row(None))
    bad.write(DirectoryStore(tmp_path), "etl/bad_rows.jsonl")
    first, second = (tmp_path / "etl" / "bad_rows.jsonl").read_text().splitlines()
    assert json.loads(first) == {
        "file": "a.csv",
        "line": 1,
        "column": "x",
        "value": "é" * 60 + "… (100)",
        "reason": "ValueError: no",
        "text": "1,é\n",
    }
    assert json.loads(second)["line"] is None


@pytest.mark.parametrize("policy", ["skip", "quarantine"])
def test_without_quarantine_or_bad_rows_nothing_is_written(tmp_path, policy):
    bad = BadRows(policy=policy)
    if policy == "skip":
        bad.add(row(1))
    bad.write(DirectoryStore(tmp_path))
    assert list(tmp_path.iterdir()) == []


def test_a_policy_is_found_by_its_name():
    assert BadRows(policy="skip").policy is Policy.SKIP
    with pytest.raises(UsageError, match="one of fail, skip, quarantine, but got 'drop'"):
        BadRows(policy="drop")
