"""The plain files of a run: progress.csv, params.json, leaderboard.csv, trace.json, report.html.

All are derived from the records and rebuilt when a run resumes, as far as those tell of earlier
processes: trace and Gantt picture begin at the resume. So they are written without syncing; those
that are replaced as a whole are replaced atomically. With more than 64 trials rows of progress.csv
are written about once a second; the leaderboard always is.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path

from cerebro.storage import layout
from cerebro.track.board import Board
from cerebro.track.efficiency import Summary
from cerebro.track.history import History
from cerebro.track.pace import HOLD_S, MANY_TRIALS, Pace
from cerebro.track.progress import ProgressFiles, csv_text
from cerebro.track.ranking import Ranking, leaderboard
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    TrialAdded,
    TrialFinished,
)
from cerebro.track.report import write_report
from cerebro.track.trace import write_trace
from cerebro.track.writing import replace
from cerebro.types import Json

LEADERBOARD_INTERVAL_S = 1.0


class FileTracker:
    """Writes the files below a run directory.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     tracker = FileTracker(directory)
    ...     tracker.record(TrialAdded(trial=0, params={"lr": 0.1}))
    ...     tracker.record(EpochFinished(trial=0, epoch=0, metrics={"val_loss": 0.5}, seconds=1.5))
    ...     tracker.close()
    ...     print(Path(directory, "trials/t0000/progress.csv").read_text())
    epoch,seconds,val_loss
    0,1.5,0.5
    <BLANKLINE>
    """

    def __init__(
        self,
        run_directory: str | os.PathLike[str],
        *,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._root = Path(run_directory)
        self._board = Board()
        self._history = History()
        self._summary: Summary | None = None
        self._progress = ProgressFiles(self._root)
        self._progress_pace = Pace(HOLD_S, rest=20.0, clock=clock)
        self._leaderboard_pace = Pace(LEADERBOARD_INTERVAL_S, clock=clock)
        self._is_stale = False
        self._complete = True

    def record(self, record: Record) -> None:
        self._board.record(record)
        self._history.record(record)
        self._complete = False
        match record:
            case TrialAdded():
                self._add_trial(record)
            case EpochFinished():
                self._progress.add(record)
                self._is_stale = self._is_stale or not record.replayed
                self._write_due()
            case TrialFinished(replayed=False):
                self._is_stale = True
                self._write_due()
            case RunFinished():
                self._summary = record.summary
                self._finish()

    def close(self) -> None:
        """Write the final files of a run that was interrupted."""
        if not self._complete:
            self._finish()

    def flush(self) -> None:
        """Write what is held back."""
        self._progress.flush()
        if self._is_stale:
            self._leaderboard_pace.run(self._write_leaderboard)

    def _write_due(self) -> None:
        # With few trials what an epoch brought is there at once.
        if len(self._board.rows) <= MANY_TRIALS or self._progress_pace.is_due:
            self._progress_pace.run(self._progress.flush)
        if self._is_stale and self._leaderboard_pace.is_due:
            self._leaderboard_pace.run(self._write_leaderboard)

    def _add_trial(self, record: TrialAdded) -> None:
        path = self._root / layout.params(record.trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(record.params), indent=2, ensure_ascii=False, allow_nan=True)
        replace(path, text + "\n")
        self._progress.start(record.trial)

    def _write_leaderboard(self) -> None:
        self._is_stale = False
        replace(self._root / layout.LEADERBOARD, leaderboard_csv(self._board.ranked()))

    def _finish(self) -> None:
        self._complete = True
        self._root.mkdir(parents=True, exist_ok=True)
        self._progress.flush()
        self._write_leaderboard()
        write_trace(self._root / layout.TRACE, self._history.timeline, self._board.run)
        write_report(self._root / layout.REPORT, self._board, self._history, self._summary)


def leaderboard_csv(ranking: Ranking) -> str:
    """The leaderboard, one row a trial; failed ones have no rank.

    >>> from cerebro.track.ranking import Criteria, TrialRow, rank
    >>> from cerebro.types import Mode
    >>> rows = [TrialRow(trial=0, params={"layers": [64, 64]})]
    >>> print(leaderboard_csv(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN))).strip())
    rank,trial,status,epoch,epochs,params.layers,error
    ,t0000,pending,,0,"[64, 64]",
    """
    lines = leaderboard(ranking)
    names = list(dict.fromkeys(name for line in lines for name in line))
    # Metrics and params that the first trial lacks belong beside the others of their kind.
    names.sort(key=_place)
    return csv_text([names, *([_cell(line.get(name)) for name in names] for line in lines)])


#: Columns before and after the metrics; params and the error are last.
_BEFORE = ("rank", "trial", "config", "repeat", "mean", "std", "status")
_AFTER = ("epoch", "epochs", "feasible", "pareto", "parent", "parent_epochs")


def _place(column: str) -> int:
    if column in _BEFORE:
        return _BEFORE.index(column)
    if column in _AFTER:
        return len(_BEFORE) + 1 + _AFTER.index(column)
    if column == "error":
        return 99
    return 98 if column.startswith("params.") else len(_BEFORE)


def _cell(value: Json) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value
