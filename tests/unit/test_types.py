from __future__ import annotations

import json

import pytest

from cerebro.types import Mode, Split, TrialStatus, trial_id


@pytest.mark.parametrize(
    ("number", "name"), [(0, "t0000"), (7, "t0007"), (9999, "t9999"), (10_000, "t10000")]
)
def test_names_of_trials_sort_as_their_numbers_up_to_ten_thousand(number, name):
    assert trial_id(number) == name


def test_a_trial_that_waits_or_runs_is_not_through():
    unfinished = {status for status in TrialStatus if not status.is_final}
    assert unfinished == {TrialStatus.PENDING, TrialStatus.RUNNING, TrialStatus.PAUSED}


@pytest.mark.parametrize("kind", [Mode, Split, TrialStatus])
def test_values_are_their_own_words_in_text_and_json(kind):
    for value in kind:
        assert kind(str(value)) is value
        assert json.loads(json.dumps(value)) == str(value) == value
