from __future__ import annotations

import pytest

from cerebro.run.estimate import estimate_s, measure

TRIALS = [
    {"type": "trial", "trial": 0, "params": {"lr": 0.1, "width": 8}, "start": 0},
    {"type": "trial", "trial": 1, "params": {"lr": 0.2, "width": 8}, "start": 1},
]


def visit(trial, epoch, seconds, size=None):
    saved = {} if size is None else {"checkpoint": {"bytes": size}}
    return {"type": "visit", "trial": trial, "epoch": epoch, "start_s": 5, "end_s": 5 + seconds} | (
        saved
    )


def epoch(trial, number, seconds):
    return {"type": "epoch", "trial": trial, "epoch": number, "seconds": seconds}


def test_a_journal_without_visits_measures_nothing():
    assert measure([], val_shards=1) is None
    assert measure(TRIALS, val_shards=1) is None


def test_a_trial_costs_what_its_visits_took():
    found = measure([*TRIALS, visit(0, 0, 1.0), visit(0, 0, 3.0), visit(1, 0, 8.0)], val_shards=0)
    assert found.seconds_of({"width": 8, "lr": 0.1}) == 2.0
    assert found.seconds_of({"lr": 0.2, "width": 8}) == 8.0
    assert found.mean_s == 4.0


def test_a_trial_that_was_not_measured_costs_the_mean():
    found = measure([*TRIALS, visit(0, 0, 1.0), visit(1, 0, 3.0)], val_shards=0)
    assert found.seconds_of({"lr": 0.3, "width": 8}) == 2.0


def test_what_an_epoch_took_beside_its_training_is_its_evaluation():
    records = [*TRIALS, visit(0, 0, 1.0), visit(0, 0, 1.0), epoch(0, 0, 3.0)]
    assert measure(records, val_shards=2).eval_share == pytest.approx(0.5)


@pytest.mark.parametrize("seconds", [1.0, 2.0, 100.0])
def test_a_share_that_cannot_be_is_replaced_by_a_guess(seconds):
    """An epoch of a resumed run may have been measured in part, or over a pause."""
    records = [*TRIALS, visit(0, 0, 1.0), visit(0, 0, 1.0), epoch(0, 0, seconds)]
    assert measure(records, val_shards=2).eval_share == 0.25


def test_the_size_of_a_checkpoint_is_the_mean():
    records = [*TRIALS, visit(0, 0, 1.0, 100), visit(0, 0, 1.0, 300), visit(1, 0, 1.0)]
    assert measure(records, val_shards=0).state_bytes == 200
    assert measure([*TRIALS, visit(0, 0, 1.0)], val_shards=0).state_bytes is None


def test_equal_trials_share_the_workers():
    found = estimate_s(
        [0.5] * 8, workers=4, epochs=2, train_shards=4, val_shards=0, eval_share=0.25
    )
    assert found == pytest.approx(8 * 2 * 4 * 0.5 / 4)


def test_one_trial_cannot_use_two_workers():
    found = estimate_s([1.0], workers=2, epochs=1, train_shards=4, val_shards=0, eval_share=0.25)
    assert found == pytest.approx(4.0)


def test_millions_of_visits_are_not_simulated():
    """The bound is exact here: equal trials fill both workers to the end."""
    found = estimate_s(
        [0.01] * 1000, workers=2, epochs=100, train_shards=100, val_shards=0, eval_share=0.25
    )
    assert found == pytest.approx(1000 * 100 * 100 * 0.01 / 2)


def test_trials_of_a_stack_share_its_visits():
    stack = {"type": "visit", "stack": 0, "trials": [0, 1], "epoch": 0, "start_s": 0, "end_s": 3}
    found = measure([*TRIALS, stack, stack], val_shards=0)
    assert (found.mean_s, found.stack_size) == (1.5, 2)
