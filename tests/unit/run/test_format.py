"""A run directory of format 1, as a version wrote it whose epochs did not say when they ended."""

from __future__ import annotations

from pathlib import Path

from cerebro.results import Result
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check

RUN = Path(__file__).resolve().parents[2] / "formats" / "run-v1"


def test_a_run_of_an_older_version_is_read():
    check(RUN)
    result = Result.open(RUN)
    assert result.digest() == "ac04e8cf6942a134729ea776ae6a119aff6c9e7b2a632e6f77310748d9c270be"
    assert result.ending.startswith("goal reached: t0000 reached val_loss 1.49354 <= 1.5")


def test_its_goal_was_reached_when_the_last_visit_before_was_over():
    visits = [record for record in read(DirectoryStore(RUN)).records if record["type"] == "visit"]
    assert Result.open(RUN).time_to_target_s == max(visit["end_s"] for visit in visits)
