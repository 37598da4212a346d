from __future__ import annotations

from typing import Any

import pytest

from cerebro.search.decision import Promote, Report, Stop
from cerebro.search.patience import Patience
from cerebro.types import Mode


def last_epoch(values: list[float], mode: Mode = Mode.MAX, **arguments: Any) -> int:
    """How many epochs a trial with these values is trained."""
    stopper = Patience(metric="m", mode=mode, epochs=len(values), **arguments)
    target = stopper.added(0, {}, 0)
    assert target is not None
    for epochs, value in enumerate(values, 1):
        for decision in stopper.evaluated(Report(0, epochs, 4 * epochs, {"m": value})):
            if isinstance(decision, Stop):
                return epochs
            assert isinstance(decision, Promote)
            target = decision.epochs
        assert epochs < target or epochs == len(values), "it waits for ever"
    return len(values)


@pytest.mark.parametrize(
    ("values", "arguments", "epochs"),
    [
        ([1, 2, 3, 4, 5], {"patience": 1}, 5),
        ([1, 1, 1, 1, 1], {"patience": 1}, 2),
        ([3, 2, 1, 0, 0, 0], {}, 4),
        ([3, 2, 1, 4, 3, 3, 3, 9], {}, 7),
        ([1, 1.1, 1.2, 1.3, 1.4], {"patience": 2, "min_delta": 0.5}, 3),
        ([1, 1.3, 1.6, 1.9, 2.2], {"patience": 2, "min_delta": 0.5}, 5),
        ([3, 2, 1, 0, 0, 0], {"patience": 1, "grace": 5}, 5),
        ([float("nan")] * 9, {"patience": 4}, 4),
    ],
)
def test_a_trial_ends_once_it_gets_no_better(
    values: list[float], arguments: dict[str, Any], epochs: int
) -> None:
    assert last_epoch(values, **arguments) == epochs
    assert last_epoch([-value for value in values], Mode.MIN, **arguments) == epochs


def test_the_reason_names_the_best_epoch() -> None:
    stopper = Patience(metric="m", mode=Mode.MAX, epochs=9, patience=2)
    stopper.added(7, {}, 0)
    told = [stopper.evaluated(Report(7, n, n, {"m": value})) for n, value in ((1, 0.5), (2, 0.4))]
    assert told == [[], [Promote(7, 3)]]
    assert stopper.evaluated(Report(7, 3, 3, {"m": 0.5})) == [
        Stop(7, "no better for 2 epochs than m 0.5 after epoch 1")
    ]


def test_trials_do_not_wait_for_each_other() -> None:
    stopper = Patience(metric="m", mode=Mode.MAX, epochs=9, patience=1)
    for trial in range(2):
        stopper.added(trial, {}, 0)
        assert stopper.evaluated(Report(trial, 1, 1, {"m": -trial})) == [Promote(trial, 2)]
    assert not stopper.is_comparing
