"""The plain files of a run: progress.csv, params.json, leaderboard.csv, trace.json, report.html.

All are derived from the records and rebuilt when a run resumes, so they are written without
syncing; those that are replaced as a whole are replaced atomically.
"""

from __future__ import annotations

import csv
import io
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cerebro.storage import layout
from cerebro.track.board import Board, TrialRow, has_rank
from cerebro.track.efficiency import Summary
from cerebro.track.history import History
from cerebro.track.records import (
    EpochFinished,
    Record,
    RunFinished,
    TrialAdded,
    TrialFinished,
)
from cerebro.track.report import write_report
from cerebro.track.trace import write_trace
from cerebro.types import trial_id

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
        self._clock = clock
        self._board = Board()
        self._history = History()
        self._summary: Summary | None = None
        self._columns: dict[int, list[str]] = {}
        self._due_s = float("-inf")
        self._complete = True

    def record(self, record: Record) -> None:
        self._board.record(record)
        self._history.record(record)
        self._complete = False
        match record:
            case TrialAdded():
                self._add_trial(record)
            case EpochFinished():
                self._append_progress(record)
                if not record.replayed:
                    self._refresh_leaderboard()
            case TrialFinished(replayed=False):
                self._refresh_leaderboard()
            case RunFinished():
                self._summary = record.summary
                self._finish()

    def close(self) -> None:
        """Write the final files of a run that was interrupted."""
        if not self._complete:
            self._finish()

    def _add_trial(self, record: TrialAdded) -> None:
        path = self._root / layout.params(record.trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        text = json.dumps(dict(record.params), indent=2, ensure_ascii=False, allow_nan=True)
        replace(path, text + "\n")
        self._columns[record.trial] = []
        (self._root / layout.progress(record.trial)).unlink(missing_ok=True)

    def _append_progress(self, record: EpochFinished) -> None:
        path = self._root / layout.progress(record.trial)
        columns = self._columns.setdefault(record.trial, [])
        added = [name for name in record.metrics if name not in columns]
        if added:
            old = _read_rows(path) if columns else []
            columns += added
            header = ["epoch", "seconds", *(_column(name) for name in columns)]
            path.parent.mkdir(parents=True, exist_ok=True)
            replace(path, _csv([header, *(row + [""] * len(added) for row in old)]))
        row = [record.epoch, record.seconds, *(record.metrics.get(name, "") for name in columns)]
        with path.open("a", encoding="utf-8", errors="backslashreplace", newline="") as file:
            file.write(_csv([row]))

    def _refresh_leaderboard(self) -> None:
        now = self._clock()
        if now < self._due_s:
            return
        begin = time.thread_time()
        self._write_leaderboard()
        # With very many trials less often, so that it stays below two percent of a core.
        cost_s = time.thread_time() - begin
        self._due_s = now + max(LEADERBOARD_INTERVAL_S, 50 * cost_s)

    def _write_leaderboard(self) -> None:
        replace(self._root / layout.LEADERBOARD, leaderboard_csv(self._board))

    def _finish(self) -> None:
        self._complete = True
        self._root.mkdir(parents=True, exist_ok=True)
        self._write_leaderboard()
        write_trace(self._root / layout.TRACE, self._history.timeline, self._board.run.run)
        write_report(self._root / layout.REPORT, self._board, self._history, self._summary)


def replace(path: Path, text: str) -> None:
    """Put a new file in the place of an old one: readers see either, never a part."""
    temporary = path.with_name(f".tmp-{os.getpid()}-0-{path.name}")
    try:
        # A lone surrogate has no UTF-8; its escape is what JSON would write.
        temporary.write_text(text, encoding="utf-8", errors="backslashreplace", newline="")
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def leaderboard_csv(board: Board) -> str:
    """The leaderboard; failed trials come last and have no rank.

    >>> print(leaderboard_csv(Board()).strip())
    rank,trial,status,metric,best_epoch,epochs,error
    """
    rows = board.ranked()
    names = list(dict.fromkeys(name for row in rows for name in row.params))
    metric = board.run.metric or "metric"
    fixed = ["rank", "trial", "status", metric, "best_epoch", "epochs"]
    header = [*fixed, *(f"params.{name}" for name in names), "error"]
    return _csv([header, *(_leaderboard_row(rank, row, names) for rank, row in enumerate(rows, 1))])


def _leaderboard_row(rank: int, row: TrialRow, names: Sequence[str]) -> list[object]:
    params = [row.params.get(name, "") for name in names]
    cells = [json.dumps(v) if isinstance(v, list | dict) else v for v in params]
    place = rank if has_rank(row) else ""
    best = "" if row.best_epoch is None else row.best_epoch
    value = "" if row.metric is None else row.metric
    status = row.status.value
    return [place, trial_id(row.trial), status, value, best, row.epochs, *cells, row.error or ""]


def _column(metric: str) -> str:
    # A metric called like a column of ours must not hide it.
    return f"metrics.{metric}" if metric in ("epoch", "seconds") else metric


def _read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
