from __future__ import annotations

import io
import re
from collections.abc import Callable
from dataclasses import replace

import pytest
from rich.console import Console

from cerebro.testing.tracker_contract import (
    Shape,
    begun,
    resumed_run,
    small_run,
    started,
    visit,
)
from cerebro.track.board import Board
from cerebro.track.console import TableTracker, console_tracker, render_board, render_leaderboard
from cerebro.track.plain import FAILURES_NAMED, LineTracker
from cerebro.track.ranking import Criteria, Ranking, TrialRow, rank
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    TrialAdded,
    TrialChanged,
    TrialFinished,
    VisitStarted,
)
from cerebro.track.standings import format_leaderboard
from cerebro.types import Mode, TrialStatus


def ranking_of(*rows: TrialRow) -> Ranking:
    return rank(rows, Criteria(metric="m", mode=Mode.MAX))


def board_of(trials: int, running: int) -> Board:
    board = Board()
    board.record(started())
    for trial in range(trials):
        board.record(TrialAdded(trial=trial, params={"lr": 0.1}))
        metrics = {"val_accuracy": trial / 100}
        board.record(EpochFinished(trial=trial, epoch=0, metrics=metrics, seconds=1.0))
    for trial in range(running):
        board.record(
            VisitStarted(
                trials=(trial,), epoch=1, step=0, phase="train", shard=1, worker=trial, time_s=0.0
            )
        )
    return board


def test_the_live_table_shows_trials_in_flight_first_then_the_best() -> None:
    lines = render_board(board_of(40, 2), height=5).plain.splitlines()
    assert [line.split()[0] for line in lines[1:6]] == ["t0000", "t0001", "t0039", "t0038", "t0037"]
    assert "(35 trials not shown)" in lines[-1]


def test_a_row_in_flight_names_epoch_shard_and_worker() -> None:
    line = render_board(board_of(1, 1)).plain.splitlines()[1]
    assert line.split() == ["t0000", "2/2", "1", "-", "0", "0", "lr=0.1"]


def test_a_stack_in_flight_is_one_row_and_the_best_trials_follow() -> None:
    board = board_of(1024, 0)
    for stack in (range(256), range(256, 512)):
        done = visit(tuple(stack), 1, 0, shape=Shape(stack=256))
        board.record(begun(done))
    lines = render_board(board, height=20).plain.splitlines()
    assert lines[1].split() == ["t0000..t0255", "2/2", "1", "-", "2.55", "0", "256", "trials"]
    assert lines[2].split()[0] == "t0256..t0511"
    assert [line.split()[0] for line in lines[3:5]] == ["t1023", "t1022"]


def test_the_live_table_of_many_trials_has_a_row_limit_and_counts_the_rest() -> None:
    board = board_of(1024, 3)
    board.record(TrialFinished(trial=9, status=TrialStatus.DIVERGED, error="loss is nan"))
    lines = render_board(board, height=12).plain.splitlines()
    assert len(lines) == 1 + 12 + 1
    assert lines[-1].endswith("(1024 trials: 1023 running, 1 diverged)")


def test_a_stack_that_waits_for_its_first_loss_is_shown_all_the_same() -> None:
    board = Board()
    board.record(started())
    board.record(begun(visit((0, 2), 0, 2)))
    line = render_board(board).plain.splitlines()[1]
    assert line.split() == ["t0000", "+1", "1/2", "v0", "-", "-", "0", "2", "trials"]


def test_the_table_is_drawn_once_more_when_nothing_comes() -> None:
    out = io.StringIO()
    tracker = TableTracker(Console(file=out, force_terminal=True, width=100))
    tracker.record(started())
    tracker.record(TrialAdded(trial=0, params={}))
    assert "t0000" not in out.getvalue()
    tracker.flush()
    assert "t0000" in out.getvalue()
    tracker.close()
    tracker.flush()


def test_a_terminal_gets_the_leaderboard_and_the_efficiency_at_the_end() -> None:
    out = io.StringIO()
    tracker = TableTracker(Console(file=out, force_terminal=True, width=100))
    for record in small_run():
        tracker.record(record)
    tracker.close()
    text = out.getvalue()
    assert text.index("val_accuracy") < text.index("efficiency 0.") < len(text)
    assert text.rstrip().endswith("start-up 1.0 s)")


def test_lines_have_no_control_codes() -> None:
    out = io.StringIO()
    tracker = LineTracker(out)
    tracker.record(started())
    tracker.record(TrialAdded(trial=0, params={"\x1b[31m": "\x07"}))
    tracker.record(TrialFinished(trial=0, status=TrialStatus.FAILED, error="a\x1b[2J\nb"))
    for record in small_run():
        tracker.record(record)
    assert all(c == "\n" or c.isprintable() for c in out.getvalue())


def test_epochs_that_end_close_together_share_a_line() -> None:
    now = 0.0
    out = io.StringIO()
    tracker = LineTracker(out, clock=lambda: now)
    tracker.record(started())
    tracker.record(TrialAdded(trial=0, params={}))
    for epoch in range(9):
        now = 3.0 if epoch == 8 else 1.0
        tracker.record(EpochFinished(trial=0, epoch=epoch, metrics={}, seconds=1.0))
    assert len(out.getvalue().splitlines()) == 2
    assert "(+8 more)" in out.getvalue()


def test_an_epoch_of_a_stack_is_one_line_once_all_its_trials_are_through() -> None:
    now = 0.0
    out = io.StringIO()
    tracker = LineTracker(out, clock=lambda: now)
    for record in small_run(shape=Shape(trials=4, stack=2, epochs=1)):
        now += 0.5
        tracker.record(record)
    lines = [line for line in out.getvalue().splitlines() if "epoch 1/1" in line]
    assert [line.split("  ", 3)[3] for line in lines] == [
        "t0000..t0001 epoch 1/1  best val_accuracy 0.6  t0001 [lr=0.1] (+1 more)",
        "t0002..t0003 epoch 1/1  best val_accuracy 0.8  t0003 [lr=0.001] (+1 more)",
    ]


def test_a_stack_does_not_wait_for_a_trial_that_failed() -> None:
    out = io.StringIO()
    now = 0.0
    tracker = LineTracker(out, clock=lambda: now)
    tracker.record(started())
    tracker.record(visit((0, 1), 0, 0))
    tracker.record(TrialFinished(trial=1, status=TrialStatus.DIVERGED, error="loss is nan"))
    now = 3.0
    tracker.record(EpochFinished(trial=0, epoch=0, metrics={}, seconds=1.0))
    assert "t0000..t0001 epoch 1/2" in out.getvalue()


def test_a_long_epoch_says_so_once_a_minute() -> None:
    now = 0.0
    out = io.StringIO()
    tracker = LineTracker(out, clock=lambda: now)
    tracker.record(started())
    for second in range(0, 130, 10):
        now = float(second)
        tracker.record(visit(0, 0, 0))
    assert len(out.getvalue().splitlines()) == 1 + 2


def test_a_failed_trial_is_always_named() -> None:
    out = io.StringIO()
    tracker = LineTracker(out)
    tracker.record(started())
    tracker.record(TrialFinished(trial=3, status=TrialStatus.DIVERGED, error="loss is nan"))
    assert "t0003 diverged: loss is nan" in out.getvalue()


@pytest.mark.parametrize(("trials", "named"), [(64, 64), (65, FAILURES_NAMED)])
def test_of_many_trials_that_fail_the_first_are_named(trials: int, named: int) -> None:
    out = io.StringIO()
    tracker = LineTracker(out)
    for trial in range(trials):
        tracker.record(TrialAdded(trial=trial, params={}))
    for trial in range(trials):
        tracker.record(TrialFinished(trial=trial, status=TrialStatus.FAILED, error="x"))
    lines = out.getvalue().splitlines()
    assert sum("failed: x" in line for line in lines) == named
    assert len(lines) == named + (trials > named)


def test_both_leaderboards_show_markup_as_text() -> None:
    ranking = ranking_of(TrialRow(trial=0, params={"[red]x": "[/red]"}, metric=0.5))
    out = io.StringIO()
    Console(file=out, width=100).print(render_leaderboard(ranking))
    assert "[red]x" in out.getvalue()
    assert "[/red]" in format_leaderboard(ranking)


def test_a_long_leaderboard_says_what_it_leaves_out() -> None:
    ranking = ranking_of(*(TrialRow(trial=n, params={}) for n in range(30)))
    assert format_leaderboard(ranking, limit=10).endswith("… and 20 more")


def test_the_leaderboard_counts_epochs_from_1_as_the_live_lines_do() -> None:
    row = TrialRow(trial=0, params={}, metric=0.5, best_epoch=0)
    assert format_leaderboard(ranking_of(row)).splitlines()[1].split()[3] == "1"


def test_progress_goes_to_standard_error(capfd: pytest.CaptureFixture[str]) -> None:
    tracker = console_tracker()
    for record in small_run():
        tracker.record(record)
    shown = capfd.readouterr()
    assert shown.out == ""
    assert "rank  trial" in shown.err


def test_the_efficiency_of_a_resumed_run_is_that_of_its_last_part() -> None:
    out = io.StringIO()
    tracker = LineTracker(out)
    for record in resumed_run():
        tracker.record(record)
    assert out.getvalue().endswith(", since the last resume\n")


def test_lines_begin_with_the_first_visit() -> None:
    out = io.StringIO()
    tracker = LineTracker(out)
    tracker.record(started())
    tracker.record(TrialAdded(trial=0, params={}))
    assert out.getvalue() == ""
    tracker.record(visit(0, 0, 0))
    assert out.getvalue().startswith("run ")


def changed(trial: int, status: TrialStatus, by: str | None = None) -> TrialChanged:
    return TrialChanged(trial=trial, status=status, is_held=by is not None, by=by)


def test_trials_that_wait_leave_room_for_those_that_do_not() -> None:
    board = board_of(10, 1)
    for trial in range(4, 10):
        board.record(changed(trial, TrialStatus.PAUSED))
    lines = render_board(board, height=6).plain.splitlines()[1:7]
    # In flight, the best, the others that are under way, and as many that wait as fit.
    assert [line.split()[0] for line in lines] == [
        *("t0000", "t0009", "t0003", "t0002", "t0001", "t0008")
    ]
    assert "waiting" in lines[1]


def test_a_trial_that_a_person_paused_is_paused_not_waiting() -> None:
    board = board_of(1, 0)
    board.record(changed(0, TrialStatus.PAUSED, "ada"))
    assert "paused" in render_board(board).plain.splitlines()[1]
    board.record(changed(0, TrialStatus.RUNNING, "ada"))
    assert "paused" not in render_board(board).plain


def test_the_progress_of_a_search_counts_trials_by_status() -> None:
    board = board_of(70, 1)
    board.record(replace(started(), is_open=True))
    board.record(changed(1, TrialStatus.PAUSED))
    board.record(TrialFinished(trial=2, status=TrialStatus.STOPPED, error="not promoted"))
    last = render_board(board, height=5).plain.splitlines()[-1]
    assert "68 running, 1 waiting, 1 stopped" in last
    assert last.count("running") == 1


def lines_of(*records: Record) -> list[str]:
    out = io.StringIO()
    tracker = LineTracker(out)
    for record in (started(), *records):
        tracker.record(record)
    return out.getvalue().splitlines()[1:]


def screen_of(*records: Record) -> list[str]:
    out = io.StringIO()
    tracker = TableTracker(Console(file=out, force_terminal=True, width=100))
    for record in (started(), *records):
        tracker.record(record)
    tracker.close()
    return [line.strip() for line in out.getvalue().splitlines()]


@pytest.mark.parametrize("shown", [lines_of, screen_of])
def test_what_people_do_is_told_what_the_search_does_is_not(
    shown: Callable[..., list[str]],
) -> None:
    stopped = TrialFinished(trial=2, status=TrialStatus.STOPPED, error="not promoted")
    lines = shown(
        changed(0, TrialStatus.PAUSED, "ada"),
        changed(0, TrialStatus.RUNNING, "ada"),
        changed(1, TrialStatus.PAUSED),
        stopped,
        replace(stopped, trial=3, by="bob"),
        replace(stopped, trial=4, by="bob", replayed=True),
    )
    told = ["t0000 paused by ada", "t0000 sent on by ada", "t0003 stopped by bob"]
    assert re.findall(r"t\d{4} (?:\w+ )+by \w+|not promoted", "\n".join(lines)) == told


@pytest.mark.parametrize("shown", [lines_of, screen_of])
def test_at_the_end_it_says_why_a_run_ended_early(shown: Callable[..., list[str]]) -> None:
    (*_, last) = small_run()
    assert isinstance(last, RunFinished)
    ending = "goal reached: t0003 reached val_accuracy 0.97 >= 0.97 in epoch 4, after 41 s"
    lines = shown(replace(last, summary=replace(last.summary, ending=ending)))
    assert lines[-2] == ending
    assert lines[-1].startswith("efficiency")
