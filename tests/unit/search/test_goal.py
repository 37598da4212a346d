from __future__ import annotations

import pytest

from cerebro.errors import UsageError
from cerebro.search.decision import Halt, Report
from cerebro.search.goal import Goal
from cerebro.types import Mode


@pytest.mark.parametrize(
    ("mode", "value", "reason"),
    [
        (Mode.MAX, 0.96, None),
        (Mode.MAX, 0.97, "t0003 reached val 0.97 >= 0.97 in epoch 4"),
        (Mode.MAX, 0.9712, "t0003 reached val 0.9712 >= 0.97 in epoch 4"),
        (Mode.MIN, 0.98, None),
        (Mode.MIN, 0.96, "t0003 reached val 0.96 <= 0.97 in epoch 4"),
        (Mode.MAX, float("nan"), None),
    ],
)
def test_the_run_ends_when_the_target_is_reached(
    mode: Mode, value: float, reason: str | None
) -> None:
    goal = Goal("val", 0.97, mode=mode)
    goal.added(3, {}, 0)
    decisions = goal.evaluated(Report(3, 4, 16, {"val": value}))
    assert decisions == ([] if reason is None else [Halt(reason)])


def test_a_metric_of_visits_is_looked_at_after_each() -> None:
    goal = Goal("train_loss", 0.1, mode=Mode.MIN)
    assert goal.visited(Report(0, 2, 9, {"train_loss": 0.2})) == []
    assert goal.visited(Report(0, 2, 10, {"train_loss": 0.1})) == [
        Halt("t0000 reached train_loss 0.1 <= 0.1 in epoch 3")
    ]


def test_it_says_how_many_epochs_a_trial_may_take() -> None:
    goal = Goal("val", 0.9, mode=Mode.MAX, max_epochs=3)
    assert goal.max_epochs == 3
    assert goal.describe()["max_epochs"] == 3
    with pytest.raises(UsageError, match="`max_epochs >= 1` must hold"):
        Goal("val", 0.9, mode=Mode.MAX, max_epochs=0)
