"""The live view in a notebook: one display that is replaced in place."""

from __future__ import annotations

import contextvars
import sys
import uuid
from collections.abc import Mapping
from typing import Any, Protocol

from cerebro.track.board import Board
from cerebro.track.history import History
from cerebro.track.notebook_html import board_html
from cerebro.track.pace import Pace
from cerebro.track.plain import Failures, command_line, progress_line
from cerebro.track.records import (
    Record,
    RunFinished,
    RunStarted,
    TrialChanged,
    TrialFinished,
    VisitFinished,
    WorkerChanged,
)
from cerebro.track.standings import format_leaderboard
from cerebro.track.text import clean

REFRESH_INTERVAL_S = 0.4
#: Of what went wrong or people did, the last lines are shown.
NOTES = 8


class Publisher(Protocol):
    """What a kernel shows things with."""

    def publish(
        self, data: Mapping[str, str], *, transient: Mapping[str, str], update: bool
    ) -> object:
        """Show data, or replace what was shown under the same `display_id`."""
        ...


def find_publisher() -> Publisher | None:
    """That of the kernel this code runs in; None elsewhere. Imports nothing.

    >>> find_publisher() is None
    True
    """
    module = sys.modules.get("IPython")
    shell: Any = module.get_ipython() if module is not None else None
    # A prompt of IPython in a terminal has no kernel, and cannot replace what it showed.
    return shell.display_pub if getattr(shell, "kernel", None) is not None else None


class NotebookTracker:
    """Shows a run in the output of the cell that started it.

    At most some times a second, when something was recorded, and never for more than two percent of
    a core. The whole view is sent anew each time: kernels and pages that were loaded later, or that
    know nothing of Cerebro, show it as well.
    """

    def __init__(self, publisher: Publisher) -> None:
        self._publisher = publisher
        self._board = Board()
        self._history = History()
        self._failures = Failures()
        self._notes: list[str] = []
        self._display: str | None = None
        self._finished: RunFinished | None = None
        self._pace = Pace(REFRESH_INTERVAL_S)
        # Records come on another thread; this tells the kernel which cell they belong to.
        self._cell = contextvars.copy_context()

    def record(self, record: Record) -> None:
        self._board.record(record)
        if not isinstance(record, VisitFinished):
            self._history.record(record)
        match record:
            case RunStarted():
                self._start()
            case RunFinished():
                self._finished = record
                self._draw()
            case TrialFinished(replayed=False) | TrialChanged(replayed=False):
                self._tell(record)
            case WorkerChanged(alive=False):
                self._note(f"worker {record.worker} was lost: {clean(record.cause or 'unknown')}")
        if self._finished is None and self._pace.is_due:
            self._pace.run(self._draw)

    def flush(self) -> None:
        """Draw what the last records brought."""
        if self._finished is None:
            self._pace.run(self._draw)

    def close(self) -> None:
        """Leave the last state behind."""
        if self._finished is None:
            self._draw()

    def _start(self) -> None:
        self._display = f"cerebro-{uuid.uuid4().hex}"
        self._publish(update=False)

    def _tell(self, record: TrialFinished | TrialChanged) -> None:
        if record.by is not None:
            self._note(command_line(record))
        elif isinstance(record, TrialFinished):
            line = self._failures.line(record, len(self._board.rows))
            if line is not None:
                self._note(line)

    def _note(self, line: str) -> None:
        self._notes = [*self._notes, line][-NOTES:]

    def _draw(self) -> None:
        if self._display is not None:
            self._publish(update=True)

    def _publish(self, *, update: bool) -> None:
        view = board_html(self._board, self._history.curves, self._notes, self._finished)
        plain = progress_line(self._board)
        if self._finished is not None:
            plain = format_leaderboard(self._board.ranked())
        self._cell.run(
            self._publisher.publish,
            {"text/html": view, "text/plain": plain},
            transient={"display_id": str(self._display)},
            update=update,
        )


def notebook_tracker() -> NotebookTracker | None:
    """A live view where this code runs in a kernel; None elsewhere.

    >>> notebook_tracker() is None
    True
    """
    publisher = find_publisher()
    return None if publisher is None else NotebookTracker(publisher)
