"""The plain files of a run: progress.csv, params.json, leaderboard.csv, trace.json, report.html.

All are derived from the records and rebuilt when a run resumes, as far as those tell of earlier
processes: trace and Gantt picture begin at the resume. So they are written without syncing; those
that are replaced as a whole are replaced atomically.
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
from cerebro.track.board import Board, TrialRow, leaderboard
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
            header = ["epoch", "seconds", *columns]
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
        replace(self._root / layout.LEADERBOARD, leaderboard_csv(self._board.ranked()))

    def _finish(self) -> None:
        self._complete = True
        self._root.mkdir(parents=True, exist_ok=True)
        self._write_leaderboard()
        write_trace(self._root / layout.TRACE, self._history.timeline, self._board.run)
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


def leaderboard_csv(rows: Sequence[TrialRow]) -> str:
    """The leaderboard of rows already ranked; failed trials come last and have no rank.

    >>> print(leaderboard_csv([TrialRow(trial=0, params={"layers": [64, 64]})]).strip())
    rank,trial,status,epoch,epochs,params.layers,error
    ,t0000,pending,,0,"[64, 64]",
    """
    lines = leaderboard(rows)
    names = list(dict.fromkeys(name for line in lines for name in line))
    # Metrics and params that the first trial lacks belong beside the others of their kind.
    names.sort(key=_place)
    return _csv([names, *([_cell(line.get(name)) for name in names] for line in lines)])


def _place(column: str) -> int:
    fixed = {"rank": 0, "trial": 1, "status": 2, "epoch": 4, "epochs": 5, "error": 7}
    return fixed.get(column, 6 if column.startswith("params.") else 3)


def _cell(value: Json) -> object:
    return json.dumps(value) if isinstance(value, list | dict) else value


def _read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]


def _csv(rows: Sequence[Sequence[object]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()
