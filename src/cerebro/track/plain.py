"""Progress and leaderboard as plain lines: for pipes, log files and batch jobs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable
from typing import TextIO

from cerebro.track.board import Board
from cerebro.track.efficiency import Summary
from cerebro.track.pace import MANY_TRIALS
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    RunStarted,
    TrialChanged,
    TrialFinished,
    VisitFinished,
    WorkerChanged,
)
from cerebro.track.standings import (
    format_leaderboard,
    show_best,
    show_counts,
    show_status,
)
from cerebro.track.text import (
    clean,
    show,
    show_count,
    show_params,
    show_seconds,
    show_trials,
    show_workers,
)
from cerebro.types import TrialStatus, trial_id

LINE_INTERVAL_S = 2.0
QUIET_INTERVAL_S = 60.0
#: Failed trials that get a line each in a run of many; the leaderboard names them all.
FAILURES_NAMED = 20


class Failures:
    """What to say of trials that fail: each is named, but in a run of many only the first ones.

    Those that the search stops get no line: they are many, and nothing is wrong with them.

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
        """The line for one that ended, if any, in a run of so many trials."""
        if not record.status.is_failure:
            return None
        self._told += 1
        if trials <= MANY_TRIALS or self._told <= FAILURES_NAMED:
            what = show_status(record.status)
            return f"{trial_id(record.trial)} {what}: {clean(record.error or '')}"
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
            case TrialFinished(replayed=False) | TrialChanged(replayed=False):
                self._tell(record)
            case WorkerChanged(alive=False):
                self._print(f"worker {record.worker} was lost: {clean(record.cause or 'unknown')}")
            case RunStarted():
                self._opening = describe(record) + "\n"
                self._printed_s = self._clock()
            case RunFinished():
                self._print(format_leaderboard(self._board.ranked()))
                for line in closing_lines(record.summary, self._board.run.resumed):
                    self._print(line)

    def close(self) -> None:
        """Nothing is held back."""

    def _tell(self, record: TrialFinished | TrialChanged) -> None:
        """One line for what failed and what people did; what the search does is seen otherwise."""
        line = None
        if record.by is not None:
            line = command_line(record)
        elif isinstance(record, TrialFinished):
            line = self._failures.line(record, len(self._board.rows))
        if line is not None:
            self._print(line)

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
        best = show_best([self._board.rows[trial] for trial in stack], run.criteria)
        what = f"{show_trials(stack)} epoch {epoch + 1}/{run.epochs}"
        return f"{what}  {best}" if best else what

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
    counts = (run.trials or None, "trial"), (run.epochs, "epoch"), (run.train_shards, "shard")
    size = " x ".join(show_count(count, what) for count, what in counts)
    aim = f"by {clean(run.metric, 40)} ({run.mode})"
    return f"{verb} {clean(run.run, 60)}: {size} on {show_workers(run.workers, run.ranks)}, {aim}"


def command_line(record: TrialFinished | TrialChanged) -> str:
    """What a person did to a trial.

    >>> command_line(TrialChanged(trial=3, status=TrialStatus.PAUSED, by="ada"))
    't0003 paused by ada'
    """
    done = "stopped" if isinstance(record, TrialFinished) else "sent on"
    if record.status is TrialStatus.PAUSED:
        done = "paused"
    return f"{trial_id(record.trial)} {done} by {clean(record.by or '', 40)}"


def closing_lines(summary: Summary, resumed: bool) -> list[str]:
    """What to say after the leaderboard: why the run ended early, if it did, and its efficiency."""
    ending = [] if summary.ending is None else [clean(summary.ending, 400)]
    return [*ending, efficiency_line(summary, resumed)]


def efficiency_line(summary: Summary, resumed: bool) -> str:
    """The run's efficiency; that of a resumed run is of its last part."""
    return summary.line() + (", since the last resume" if resumed else "")


def progress_line(board: Board) -> str:
    """How far the run is; where results decide what is trained, also how many trials stand where.

    >>> progress_line(Board())
    'visits 0/0  0.0/s  ETA -'
    """
    count = f"visits {board.visits_done}/{board.visits_total}"
    most = "at most " if board.run.is_open and math.isfinite(board.eta_s) else ""
    where = f"  {show_counts(board.statuses)}" if board.run.is_open else ""
    return f"{count}  {board.visits_per_s:.1f}/s  ETA {most}{show_seconds(board.eta_s)}{where}"
