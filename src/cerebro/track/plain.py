"""Progress and leaderboard as plain lines: for pipes, log files and batch jobs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from typing import TextIO

from cerebro.track.board import Board, TrialRow, has_rank
from cerebro.track.efficiency import Summary
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    RunStarted,
    TrialFinished,
    VisitFinished,
    WorkerChanged,
)
from cerebro.track.text import clean, show, show_params, show_seconds
from cerebro.types import trial_id

LINE_INTERVAL_S = 2.0
QUIET_INTERVAL_S = 60.0
LEADERBOARD_ROWS = 20


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


class LineTracker:
    """Prints a line when an epoch ends, at most one every two seconds; failures always.

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

    def record(self, record: Record) -> None:
        self._board.record(record)
        match record:
            case VisitFinished():
                self._open()
                self._maybe("", QUIET_INTERVAL_S)
            case EpochFinished(replayed=False):
                self._unsaid += 1
                self._maybe(self._epoch(record), LINE_INTERVAL_S)
            case TrialFinished(replayed=False) if record.error:
                self._print(f"{trial_id(record.trial)} {record.status}: {clean(record.error)}")
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

    def _maybe(self, line: str, interval_s: float) -> None:
        now = self._clock()
        if now - self._printed_s < interval_s:
            return
        self._printed_s = now
        more = f" (+{self._unsaid - 1} more)" if self._unsaid > 1 else ""
        self._unsaid = 0
        self._print(f"{progress_line(self._board)}{'  ' if line else ''}{line}{more}")

    def _epoch(self, record: EpochFinished) -> str:
        values = "  ".join(f"{clean(k, 24)} {show(v)}" for k, v in record.metrics.items())
        params = clean(show_params(self._board.rows[record.trial].params), 60)
        epoch = f"epoch {record.epoch + 1}/{self._board.run.epochs}"
        return f"{trial_id(record.trial)} {epoch}  {values}  [{params}]"

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
    return f"{count}  {board.visits_per_s:.1f}/s  ETA {show_seconds(board.eta_s)}"
