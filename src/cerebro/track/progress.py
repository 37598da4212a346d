"""trials/<trial>/progress.csv: one row an epoch."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from cerebro.storage import layout
from cerebro.track.records import EpochFinished
from cerebro.track.writing import append, replace


class ProgressFiles:
    """The progress of all trials; rows are held until ``flush``.

    A metric that appears later gets a column, and the rows before it an empty cell.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._columns: dict[int, list[str]] = {}
        self._held: dict[int, list[EpochFinished]] = {}

    def start(self, trial: int) -> None:
        """Begin anew; the directory of the trial exists."""
        self._columns.pop(trial, None)
        self._held.pop(trial, None)
        (self._root / layout.progress(trial)).unlink(missing_ok=True)

    def add(self, record: EpochFinished) -> None:
        """Hold one row."""
        self._held.setdefault(record.trial, []).append(record)

    def flush(self) -> None:
        """Write what is held."""
        while self._held:
            trial, records = self._held.popitem()
            self._write(trial, records)

    def _write(self, trial: int, records: Sequence[EpochFinished]) -> None:
        path = self._root / layout.progress(trial)
        is_new = trial not in self._columns
        columns = self._columns.setdefault(trial, [])
        names = dict.fromkeys(name for record in records for name in record.metrics)
        added = [name for name in names if name not in columns]
        columns += added
        rows: list[list[object]] = [
            [r.epoch, r.seconds, *(r.metrics.get(name, "") for name in columns)] for r in records
        ]
        if is_new:
            path.parent.mkdir(parents=True, exist_ok=True)
            rows.insert(0, ["epoch", "seconds", *columns])
        elif added:
            old = _read_rows(path)
            header = ["epoch", "seconds", *columns]
            replace(path, csv_text([header, *(row + [""] * len(added) for row in old)]))
        append(path, csv_text(rows).encode(errors="backslashreplace"))


def csv_text(rows: Sequence[Sequence[object]]) -> str:
    """Rows as CSV.

    >>> csv_text([["a", 1.5], ["b,c", None]])
    'a,1.5\\n"b,c",\\n'
    """
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(rows)
    return text.getvalue()


def _read_rows(path: Path) -> list[list[str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.reader(file))[1:]
