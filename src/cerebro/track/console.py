"""The live table in a terminal, and the leaderboard as a table."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from typing import TextIO

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cerebro.track.board import Board, TrialRow, has_rank
from cerebro.track.plain import (
    LEADERBOARD_ROWS,
    LineTracker,
    describe,
    efficiency_line,
    leaderboard_cells,
    progress_line,
)
from cerebro.track.records import Record, RunFinished, RunStarted, TrialFinished, WorkerChanged
from cerebro.track.text import clean, show, show_params
from cerebro.types import TrialStatus, trial_id

ROWS = 20
BAR_WIDTH = 20
#: Columns of the leaderboard that are always shown in full: rank, trial, metric, epoch.
FIXED_COLUMNS = 4
REFRESH_INTERVAL_S = 0.25
#: Drawing waits for this many times what the last drawing cost: 2 % of a core at most.
REST_PER_COST = 50


def render_leaderboard(
    rows: Sequence[TrialRow], *, metric: str, limit: int = LEADERBOARD_ROWS
) -> RenderableType:
    """The leaderboard as a table for a rich console, for rows already ranked.

    >>> import io
    >>> table = render_leaderboard([TrialRow(trial=3, params={"lr": 0.1})], metric="val_loss")
    >>> out = io.StringIO()
    >>> Console(file=out, width=60).print(table)
    >>> out.getvalue().split()
    ['rank', 'trial', 'val_loss', 'epoch', 'lr', 'status', 't0003', '-', '-', '0.1', 'pending']
    """
    header, cells = leaderboard_cells(rows, clean(metric, 24), limit)
    table = Table(box=None, pad_edge=True, header_style="bold", padding=(0, 1))
    for place, name in enumerate(header):
        left = place in (1, len(header) - 1)
        # In a narrow terminal params and status give way, not who is best by how much.
        fixed = place < FIXED_COLUMNS
        table.add_column(_cut(name), justify="left" if left else "right", no_wrap=fixed)
    for number, line in enumerate(cells):
        first = number == 0 and has_rank(rows[0])
        table.add_row(*map(_cut, line), style="bold green" if first else None)
    if len(rows) > limit:
        return Group(table, Text(f" … and {len(rows) - limit} more", style="dim"))
    return table


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def render_board(board: Board, *, height: int = ROWS) -> Text:
    """The live view: trials in flight first, then the best, and how far the run is.

    One text, laid out by hand: a rich table of this size takes four times as long to draw.
    """
    rows = board.ranked()
    running = sorted((row for row in rows if row.visits), key=lambda row: row.trial)
    others = [row for row in rows if not row.visits]
    shown = (running + others)[:height]
    best = rows[0].trial if rows and has_rank(rows[0]) else None
    lines: list[tuple[str, ...]] = [
        ("trial", "epoch", "shard", "loss", clean(board.run.metric, 24), "worker", "params")
    ]
    styles = ["bold"]
    for row in shown:
        lines.append(_cells(row, board))
        styles.append("bold green" if row.trial == best else "" if row.visits else "dim")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0  # the last column may be cut at the edge
    text = Text(no_wrap=True, overflow="ellipsis")
    for line, style in zip(lines, styles, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        text.append(" " + "  ".join(cells) + "\n", style)
    hidden = len(rows) - len(shown)
    more = f"  ({hidden} trials not shown)" if hidden else ""
    return text.append_text(_bar(board, BAR_WIDTH)).append(f" {progress_line(board)}{more}")


def _bar(board: Board, width: int) -> Text:
    done = round(width * min(1.0, board.visits_done / max(1, board.visits_total)))
    return Text().append(" " + "━" * done, "green").append("─" * (width - done), "dim")


def _cells(row: TrialRow, board: Board) -> tuple[str, ...]:
    epoch = f"{min(row.epochs + 1, board.run.epochs)}/{board.run.epochs}"
    if row.visits:
        shard = ",".join(f"{'v' if p == 'eval' else ''}{s}" for p, s in row.visits.values())
        worker = ",".join(map(str, row.visits))
    else:
        shard, worker = "", "" if row.status == TrialStatus.RUNNING else row.status.value
        epoch = f"{row.epochs}/{board.run.epochs}"
    params = clean(show_params(row.params), 120)
    return trial_id(row.trial), epoch, shard, show(row.loss), show(row.metric), worker, params


class TableTracker:
    """Keeps a live table at the bottom of a terminal, then prints the leaderboard.

    Redrawn at most four times a second, on records only, and never for more than two percent of
    a core: with slow drawing it is redrawn less often.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True)
        self._board = Board()
        self._live: Live | None = None
        self._due_s = 0.0

    def record(self, record: Record) -> None:
        self._board.record(record)
        match record:
            case RunStarted():
                self._start(record)
            case RunFinished():
                self._stop()
                metric = self._board.run.metric
                self._console.print(render_leaderboard(self._board.ranked(), metric=metric))
                self._say(efficiency_line(record.summary, self._board.run.resumed))
            case TrialFinished(replayed=False) if record.error:
                self._say(f"{trial_id(record.trial)} {record.status}: {clean(record.error)}")
            case WorkerChanged(alive=False):
                self._say(f"worker {record.worker} was lost: {clean(record.cause or 'unknown')}")
        self._refresh()

    def close(self) -> None:
        """Leave the terminal as it was found."""
        self._stop()

    def _start(self, record: RunStarted) -> None:
        self._say(describe(record))
        # What a script prints stays on its standard output where that is no terminal.
        live = Live(
            console=self._console,
            auto_refresh=False,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
        )
        live.start()
        # Live hides the cursor; a killed driver could not bring it back.
        self._console.show_cursor(True)
        self._live = live

    def _refresh(self) -> None:
        now = time.monotonic()
        if self._live is None or now < self._due_s:
            return
        begin = time.thread_time()
        height = max(1, min(ROWS, self._console.height - 5))
        self._live.update(render_board(self._board, height=height), refresh=True)
        cost_s = time.thread_time() - begin
        self._due_s = now + max(REFRESH_INTERVAL_S, REST_PER_COST * cost_s)

    def _stop(self) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None

    def _say(self, line: str) -> None:
        self._console.print(Text(line), soft_wrap=True)


def console_tracker(stream: TextIO | None = None) -> TableTracker | LineTracker:
    """A live table when ``stream`` is a terminal, else plain lines.

    The default is standard error: standard output belongs to what a script prints.

    >>> import io
    >>> type(console_tracker(io.StringIO())).__name__
    'LineTracker'
    """
    target = stream if stream is not None else sys.stderr
    console = Console(file=target)
    # A dumb terminal understands no cursor movement; a notebook is no terminal.
    if target.isatty() and console.is_terminal and not console.is_dumb_terminal:
        return TableTracker(console)
    return LineTracker(target)
