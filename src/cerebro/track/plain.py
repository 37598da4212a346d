"""Progress and leaderboard as plain lines: for pipes, log files and batch jobs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from cerebro.track.board import Board, TrialRow, has_rank, ranked
from cerebro.track.efficiency import Summary
from cerebro.track.pace import MANY_TRIALS
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    RunStarted,
    TrialFinished,
    VisitFinished,
    WorkerChanged,
)
from cerebro.track.text import clean, show, show_params, show_seconds, show_trials
from cerebro.types import trial_id

LINE_INTERVAL_S = 2.0
QUIET_INTERVAL_S = 60.0
LEADERBOARD_ROWS = 20
#: Failed trials that get a line each in a run of many; the leaderboard names them all.
FAILURES_NAMED = 20


def leaderboard_cells(
    rows: Sequence[TrialRow], metric: str, limit: int = LEADERBOARD_ROWS
) -> tuple[list[str], list[list[str]]]:
    """Header and cells of a leaderboard, one column a param, for rows already ranked.

    People count from 1: so does the epoch of the best value here.

    >>> header, cells = leaderboard_cells([TrialRow(trial=0, params={"lr": 0.1})], "val_loss")
    >>> header
    ['rank', 'trial', 'val_loss', 'epoch', 'lr', 'status']
    >>> cells
    [['', 't0000', '-', '-', '0.1', 'pending']]
    """
    shown = list(rows[:limit])
    names = list(dict.fromkeys(name for row in shown for name in row.params))
    header = ["rank", "trial", metric, "epoch", *(clean(name, 24) for name in names), "status"]
    cells = []
    for rank, row in enumerate(shown, 1):
        params = [show(row.params[name]) if name in row.params else "" for name in names]
        status = row.status.value + (f": {clean(row.error, 60)}" if row.error else "")
        place = str(rank) if has_rank(row) else ""
        best = "-" if row.best_epoch is None else str(row.best_epoch + 1)
        cells.append([place, trial_id(row.trial), show(row.metric), best, *params, status])
    return header, cells


def format_leaderboard(
    rows: Sequence[TrialRow], *, metric: str, limit: int = LEADERBOARD_ROWS
) -> str:
    """The leaderboard as aligned text, for rows already ranked.

    >>> row = TrialRow(trial=3, params={"lr": 0.1}, metric=0.97, best_epoch=4)
    >>> print(format_leaderboard([row], metric="val_accuracy"))
    rank  trial  val_accuracy  epoch  lr   status
    1     t0003  0.97          5      0.1  pending
    """
    header, cells = leaderboard_cells(rows, metric, limit)
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    lines = [
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in [header, *cells]
    ]
    if len(rows) > limit:
        lines.append(f"… and {len(rows) - limit} more")
    return "\n".join(lines)


class Failures:
    """What to say of trials that fail: each is named, but in a run of many only the first ones.

    >>> from cerebro.types import TrialStatus
    >>> failures = Failures()
    >>> failed = TrialFinished(trial=2, status=TrialStatus.FAILED, error="no luck")
    >>> lines = [failures.line(failed, trials=1024) for _ in range(30)]
    >>> lines[0], lines[FAILURES_NAMED], lines[FAILURES_NAMED + 1]
    ('t0002 failed: no luck', 'further failures are in the leaderboard only', None)
    """

    def __init__(self) -> None:
        self._told = 0

    def line(self, record: TrialFinished, trials: int) -> str | None:
        """The line for one, if any, in a run of so many trials."""
        self._told += 1
        if trials <= MANY_TRIALS or self._told <= FAILURES_NAMED:
            return f"{trial_id(record.trial)} {record.status}: {clean(record.error or '')}"
        first = self._told == FAILURES_NAMED + 1
        return "further failures are in the leaderboard only" if first else None


class LineTracker:
    """Prints a line when an epoch of a trial or stack ends, at most one every two seconds.

    Failures are always told, but where there are many trials only the first ones by name.
    The first line waits for the first visit: a run that is refused there says why, and no more.

    >>> import io
    >>> from cerebro.types import TrialStatus
    >>> out = io.StringIO()
    >>> tracker = LineTracker(out)
    >>> tracker.record(TrialFinished(trial=2, status=TrialStatus.FAILED, error="no luck"))
    >>> print(out.getvalue())
    t0002 failed: no luck
    <BLANKLINE>
    """

    def __init__(
        self, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = stream if stream is not None else sys.stderr
        self._clock = clock
        self._board = Board()
        self._printed_s = float("-inf")
        self._unsaid = 0
        self._opening = ""
        self._failures = Failures()

    def record(self, record: Record) -> None:
        self._board.record(record)
        match record:
            case VisitFinished():
                self._open()
                if self._is_due(QUIET_INTERVAL_S):
                    self._progress("")
            case EpochFinished(replayed=False):
                self._unsaid += 1
                if self._is_due(LINE_INTERVAL_S) and self._is_whole(record):
                    self._progress(self._epoch(record))
            case TrialFinished(replayed=False) if record.error:
                if line := self._failures.line(record, len(self._board.rows)):
                    self._print(line)
            case WorkerChanged(alive=False):
                self._print(f"worker {record.worker} was lost: {clean(record.cause or 'unknown')}")
            case RunStarted():
                self._opening = describe(record) + "\n"
                self._printed_s = self._clock()
            case RunFinished():
                rows = self._board.ranked()
                self._print(format_leaderboard(rows, metric=clean(self._board.run.metric)))
                self._print(efficiency_line(record.summary, self._board.run.resumed))

    def close(self) -> None:
        """Nothing is held back."""

    def _is_due(self, interval_s: float) -> bool:
        return self._clock() - self._printed_s >= interval_s

    def _is_whole(self, record: EpochFinished) -> bool:
        """Whether all trials of the stack are through with the epoch; a trial alone always is."""
        rows = self._board.rows
        # They end in order, so the last one tells at once.
        return all(
            rows[trial].epochs > record.epoch or rows[trial].status.is_final
            for trial in reversed(rows[record.trial].stack)
        )

    def _progress(self, line: str) -> None:
        self._printed_s = self._clock()
        more = f" (+{self._unsaid - 1} more)" if self._unsaid > 1 else ""
        self._unsaid = 0
        self._print(f"{progress_line(self._board)}{'  ' if line else ''}{line}{more}")

    def _epoch(self, record: EpochFinished) -> str:
        stack = self._board.rows[record.trial].stack
        if len(stack) > 1:
            return self._stack_epoch(record.epoch, stack)
        values = "  ".join(f"{clean(k, 24)} {show(v)}" for k, v in record.metrics.items())
        params = clean(show_params(self._board.rows[record.trial].params), 60)
        epoch = f"epoch {record.epoch + 1}/{self._board.run.epochs}"
        return f"{trial_id(record.trial)} {epoch}  {values}  [{params}]"

    def _stack_epoch(self, epoch: int, stack: tuple[int, ...]) -> str:
        run = self._board.run
        best = ranked((self._board.rows[trial] for trial in stack), run.mode)[0]
        what = f"{show_trials(stack)} epoch {epoch + 1}/{run.epochs}"
        if not has_rank(best):
            return what
        params = clean(show_params(best.params), 60)
        value = f"{clean(run.metric, 24)} {show(best.metric)}"
        return f"{what}  best {value}  {trial_id(best.trial)} [{params}]"

    def _open(self) -> None:
        if self._opening:
            self._stream.write(self._opening)
            self._stream.flush()
            self._opening = ""

    def _print(self, line: str) -> None:
        self._open()
        self._stream.write(line + "\n")
        self._stream.flush()


def describe(run: RunStarted) -> str:
    """What is about to happen, in one line.

    >>> describe(RunStarted(run="digits", workers=2, trials=16, epochs=5, train_shards=8,
    ...                     val_shards=2, metric="val_accuracy", mode="max"))
    'run digits: 16 trials x 5 epochs x 8 shards on 2 workers, by val_accuracy (max)'
    """
    verb = "resuming" if run.resumed else "run"
    size = f"{run.trials or '?'} trials x {run.epochs} epochs x {run.train_shards} shards"
    aim = f"by {clean(run.metric, 40)} ({run.mode})"
    return f"{verb} {clean(run.run, 60)}: {size} on {run.workers} workers, {aim}"


def efficiency_line(summary: Summary, resumed: bool) -> str:
    """The run's efficiency; that of a resumed run is of its last part."""
    return summary.line() + (", since the last resume" if resumed else "")


def progress_line(board: Board) -> str:
    """How far the run is.

    >>> progress_line(Board())
    'visits 0/0  0.0/s  ETA -'
    """
    count = f"visits {board.visits_done}/{board.visits_total}"
    most = "at most " if board.run.is_open and math.isfinite(board.eta_s) else ""
    return f"{count}  {board.visits_per_s:.1f}/s  ETA {most}{show_seconds(board.eta_s)}"
