from __future__ import annotations

import time

import pytest

from cerebro.track.pace import Pace


def test_work_is_due_at_first_and_then_after_the_interval() -> None:
    now = 5.0
    pace = Pace(2.0, clock=lambda: now)
    assert pace.is_due
    pace.run(lambda: None)
    now = 6.9
    assert not pace.is_due
    now = 60.0
    assert pace.is_due


def test_work_that_costs_much_is_done_less_often(monkeypatch: pytest.MonkeyPatch) -> None:
    now = spent = 0.0
    monkeypatch.setattr(time, "thread_time", lambda: spent)

    def work() -> None:
        nonlocal spent
        spent += 0.5

    pace = Pace(1.0, rest=20.0, clock=lambda: now)
    pace.run(work)
    now = 9.9
    assert not pace.is_due
    now = 10.0
    assert pace.is_due
