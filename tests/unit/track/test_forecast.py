from __future__ import annotations

import math
import random
from dataclasses import replace

import pytest

from cerebro.track.board import Board
from cerebro.track.forecast import Forecast
from cerebro.track.plain import progress_line
from cerebro.track.records import (
    RunStarted,
    TrialChanged,
    TrialFinished,
    VisitFinished,
    WorkerChanged,
)
from cerebro.types import TrialStatus
from tests.unit.track.simulated import SimulatedRun

RUNS = {
    "uniform": SimulatedRun(seconds=[1.0] * 16),
    "noisy": SimulatedRun(seconds=[1.0] * 16, noise=0.5),
    "one to ten": SimulatedRun(seconds=[1.0 + 9.0 * n / 11 for n in range(12)], noise=0.1),
    "most are cheap": SimulatedRun(seconds=[10.0, 10.0, *[1.0] * 30]),
    "one outlasts the others": SimulatedRun(seconds=[20.0, *[1.0] * 10]),
    "slow first visits": SimulatedRun(seconds=[1.0] * 8, warm_up=5.0),
    "slow start": SimulatedRun(seconds=[1.0] * 8, startup_s=60.0),
    "gaps between visits": SimulatedRun(seconds=[0.1] * 16, gap_s=0.05),
    "stacks": SimulatedRun(seconds=[4.0, 4.0, 1.0, 1.0, 1.0], sizes=[64, 64, 8, 1, 1]),
    "one stack": SimulatedRun(seconds=[2.0], sizes=[256]),
    "fewer trials than workers": SimulatedRun(seconds=[1.0, 2.0, 3.0], workers=8),
    "three on two": SimulatedRun(seconds=[1.0] * 3),
    "dear evaluation": SimulatedRun(seconds=[1.0] * 8, eval_share=2.0, val_shards=4),
    "no evaluation": SimulatedRun(seconds=[1.0] * 8, val_shards=0),
    "one epoch": SimulatedRun(seconds=[1.0] * 16, epochs=1, val_shards=1),
    "many workers": SimulatedRun(
        seconds=[random.Random(n).uniform(0.5, 5.0) for n in range(64)], workers=16, noise=0.2
    ),
}


def followed(run: SimulatedRun) -> list[tuple[float, float]]:
    """What the board shows at each moment, and the end of the run at last."""
    board = Board()
    shown: list[tuple[float, float]] = []
    for now, record in run.records():
        board.record(record)
        shown.append((now, board.eta_s))
    return shown


@pytest.mark.parametrize("name", RUNS)
def test_from_the_first_quarter_on_the_time_left_is_right_by_a_fifth(name: str) -> None:
    shown = followed(RUNS[name])
    start, end = RUNS[name].startup_s, shown[-1][0]
    for part in (0.25, 0.5, 0.75):
        moment = start + part * (end - start)
        now, eta_s = [each for each in shown if each[0] <= moment][-1]
        assert eta_s == pytest.approx(end - now, rel=0.2), f"at {part}"


def test_nothing_is_left_at_the_end_and_nothing_is_known_before_the_first_visit() -> None:
    shown = followed(RUNS["one to ten"])
    assert math.isnan(shown[0][1])
    assert shown[-1][1] == 0.0


def test_a_resumed_run_counts_what_is_left_from_the_visits_it_sees() -> None:
    run = SimulatedRun(seconds=[1.0] * 4, epochs=10)
    whole = list(run.records())
    end = whole[-1][0]
    board = Board()
    for now, record in whole:
        # Of visits before half of it nothing is told.
        is_visit = isinstance(record, VisitFinished)
        if not is_visit or now > end / 2:
            board.record(record)
        if now > 0.6 * end:
            break
    assert board.eta_s == pytest.approx(end - now, rel=0.2)


def test_a_lost_worker_makes_the_rest_take_longer() -> None:
    forecast = Forecast()
    records = list(SimulatedRun(seconds=[1.0] * 8).records())
    for _, record in records[: len(records) // 2]:
        forecast.record(record)
    before_s = forecast.left_s()
    forecast.record(WorkerChanged(worker=1, alive=False, cause=None, time_s=1.0))
    assert forecast.left_s() == pytest.approx(2 * before_s, rel=0.05)
    forecast.record(WorkerChanged(worker=2, alive=True, cause=None, time_s=1.0))
    assert forecast.left_s() == pytest.approx(before_s, rel=0.05)


def test_trials_that_end_early_leave_nothing_to_do_and_paused_ones_neither() -> None:
    forecast = Forecast()
    records = list(SimulatedRun(seconds=[1.0] * 4).records())
    for _, record in records[: len(records) // 4]:
        forecast.record(record)
    before_s = forecast.left_s()
    forecast.record(TrialFinished(trial=0, status=TrialStatus.FAILED, error="no luck"))
    assert forecast.left_s() == pytest.approx(3 / 4 * before_s, rel=0.1)
    forecast.record(TrialChanged(trial=1, status=TrialStatus.PAUSED))
    assert forecast.left_s() == pytest.approx(2 / 4 * before_s, rel=0.1)
    forecast.record(TrialChanged(trial=1, status=TrialStatus.RUNNING))
    assert forecast.left_s() == pytest.approx(3 / 4 * before_s, rel=0.1)


def line(run: SimulatedRun) -> str:
    board = Board()
    records = list(run.records())
    for _, record in records[: len(records) // 2]:
        board.record(record)
    return progress_line(board)


def test_a_run_whose_results_decide_tells_an_upper_bound() -> None:
    run = SimulatedRun(seconds=[1.0] * 8)
    assert "  ETA at most 1 min " in line(replace(run, run={"is_open": True}))
    assert "  ETA 1 min " in line(run)


def test_no_more_is_left_than_the_budget_leaves() -> None:
    run = SimulatedRun(seconds=[1.0] * 8)
    assert line(replace(run, run={"budget_s": 60.0})).endswith("  ETA 0 s")
    assert line(replace(run, run={"budget_s": 3600.0})) == line(run)


def test_a_budget_of_epochs_cuts_what_is_left() -> None:
    run = SimulatedRun(seconds=[1.0] * 8)
    plain, bounded = Forecast(), Forecast()
    records = [record for _, record in run.records()]
    for record in records[: len(records) // 2]:
        plain.record(record)
        if isinstance(record, RunStarted):
            record = replace(record, max_epochs=30)
        bounded.record(record)
    # Half of 40 epochs are over, and about half of the rest is allowed.
    assert bounded.left_s() == pytest.approx(plain.left_s() / 2, rel=0.2)
