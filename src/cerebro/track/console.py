"""The live table in a terminal, and the leaderboard as a table."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Mapping
from typing import TextIO

from rich.console import Console, Group, JustifyMethod, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from cerebro.track.board import Board
from cerebro.track.pace import MANY_TRIALS, Pace
from cerebro.track.plain import (
    Failures,
    LineTracker,
    closing_lines,
    command_line,
    describe,
    progress_line,
)
from cerebro.track.ranking import Ranking, TrialRow, best_of, has_rank
from cerebro.track.records import (
    Record,
    RunFinished,
    RunStarted,
    TrialChanged,
    TrialFinished,
    WorkerChanged,
)
from cerebro.track.standings import (
    LEADERBOARD_ROWS,
    leaderboard_cells,
    show_counts,
    show_status,
)
from cerebro.track.text import clean, show, show_params, show_trials
from cerebro.types import TrialStatus, trial_id

ROWS = 20
BAR_WIDTH = 20
REFRESH_INTERVAL_S = 0.25


def render_leaderboard(ranking: Ranking, *, limit: int = LEADERBOARD_ROWS) -> RenderableType:
    """The leaderboard as a table for a rich console.

    >>> import io
    >>> from cerebro.track.ranking import Criteria, rank
    >>> from cerebro.types import Mode
    >>> rows = [TrialRow(trial=3, params={"lr": 0.1})]
    >>> table = render_leaderboard(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN)))
    >>> out = io.StringIO()
    >>> Console(file=out, width=60).print(table)
    >>> out.getvalue().split()
    ['rank', 'trial', 'val_loss', 'epoch', 'lr', 'status', 't0003', '-', '-', '0.1', 'pending']
    """
    header, cells, fixed = leaderboard_cells(ranking, limit)
    table = Table(box=None, pad_edge=True, header_style="bold", padding=(0, 1))
    for place, name in enumerate(header):
        left = place in (1, len(header) - 1)
        # In a narrow terminal params and status give way, not who is best by how much.
        side: JustifyMethod = "left" if left else "right"
        table.add_column(_cut(name), justify=side, no_wrap=place < fixed)
    for config, line in zip(ranking.configs, cells, strict=False):
        table.add_row(*map(_cut, line), style="bold green" if config.rank == 1 else None)
    if len(ranking.configs) > limit:
        return Group(table, Text(f" … and {len(ranking.configs) - limit} more", style="dim"))
    return table


def _cut(text: str) -> Text:
    return Text(text, no_wrap=True, overflow="ellipsis")


def render_board(board: Board, *, height: int = ROWS) -> Text:
    """The live view: what is in flight first, then the best, and how far the run is.

    Trials that wait come after those that have a result and do not. A stack in flight is one row.
    One text, laid out by hand: a rich table of this size takes four times as long to draw.
    """
    ranking = board.ranked()
    best, rows = ranking.best, ranking.rows
    flights = board.in_flight.values()
    stacks = sorted({f.trials for f in flights if len(f.trials) > 1})[:height]
    alone = sorted({f.trials[0] for f in flights if len(f.trials) == 1})
    running = {n: board.rows[n] for n in alone if board.rows[n].visits}
    others = _by_interest((row for row in rows if row.trial not in running), best)
    shown = [*running.values(), *others][: height - len(stacks)]
    lines: list[tuple[str, ...]] = [
        ("trial", "epoch", "shard", "loss", clean(board.run.metric, 24), "worker", "params")
    ]
    lines += [_stack_cells(stack, board) for stack in stacks]
    styles = ["bold", *("" for _ in stacks)]
    for row in shown:
        lines.append(_cells(row, board))
        styles.append("bold green" if row is best else "" if row.trial in running else "dim")
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    widths[-1] = 0  # the last column may be cut at the edge
    text = Text(no_wrap=True, overflow="ellipsis")
    for line, style in zip(lines, styles, strict=True):
        cells = (cell.ljust(width) for cell, width in zip(line, widths, strict=True))
        text.append(" " + "  ".join(cells) + "\n", style)
    more = _hidden(board, len(rows) - len(shown))
    return text.append_text(_bar(board, BAR_WIDTH)).append(f" {progress_line(board)}{more}")


def _by_interest(rows: Iterable[TrialRow], best: TrialRow | None) -> list[TrialRow]:
    """The best first, whatever it does; then those with a result, those that wait, the others."""

    def place(row: TrialRow) -> int:
        if row is best:
            return 0
        if not has_rank(row):
            return 3
        return 2 if row.status is TrialStatus.PAUSED else 1

    return sorted(rows, key=place)


def _hidden(board: Board, number: int) -> str:
    if number == 0:
        return ""
    if len(board.rows) <= MANY_TRIALS:
        return f"  ({number} trials not shown)"
    # In a search the line of progress counts them.
    counts = "" if board.run.is_open else f": {show_counts(board.statuses)}"
    return f"  ({len(board.rows)} trials{counts})"


def _bar(board: Board, width: int) -> Text:
    done = round(width * min(1.0, board.visits_done / max(1, board.visits_total)))
    return Text().append(" " + "━" * done, "green").append("─" * (width - done), "dim")


def _cells(row: TrialRow, board: Board) -> tuple[str, ...]:
    epoch = f"{min(row.epochs + 1, board.run.epochs)}/{board.run.epochs}"
    if row.visits:
        shard, worker = _places(row.visits)
    else:
        shard, worker = "", show_status(row.status, is_held=row.is_held)
        worker = "" if row.status is TrialStatus.RUNNING else worker
        epoch = f"{row.epochs}/{board.run.epochs}"
    params = clean(show_params(row.params), 120)
    return trial_id(row.trial), epoch, shard, show(row.loss), show(row.metric), worker, params


def _stack_cells(stack: tuple[int, ...], board: Board) -> tuple[str, ...]:
    """The mean loss of its trials and the best metric among them."""
    visits = {w: f for w, f in board.in_flight.items() if f.trials == stack}
    shard, worker = _places({w: (f.phase, f.shard) for w, f in visits.items()})
    epoch = f"{max(f.epoch for f in visits.values()) + 1}/{board.run.epochs}"
    rows = [board.rows[trial] for trial in stack]
    losses = [row.loss for row in rows if row.loss is not None and math.isfinite(row.loss)]
    loss = show(sum(losses) / len(losses) if losses else None)
    best = best_of(rows, board.run.mode)
    metric = show(None if best is None else best.metric)
    return show_trials(stack), epoch, shard, loss, metric, worker, f"{len(stack)} trials"


def _places(visits: Mapping[int, tuple[str, int]]) -> tuple[str, str]:
    """Shards and workers of visits in flight."""
    shards = ",".join(f"{'v' if p == 'eval' else ''}{s}" for p, s in visits.values())
    return shards, ",".join(map(str, visits))


class TableTracker:
    """Keeps a live table at the bottom of a terminal, then prints the leaderboard.

    Redrawn at most four times a second, when something was recorded, and never for more than two
    percent of a core: with slow drawing it is redrawn less often. However many trials there are,
    it shows those in flight and the best, as far as they fit, and how many are where.
    """

    def __init__(self, console: Console | None = None) -> None:
        self._console = console if console is not None else Console(stderr=True)
        self._board = Board()
        self._live: Live | None = None
        self._failures = Failures()
        self._pace = Pace(REFRESH_INTERVAL_S)

    def record(self, record: Record) -> None:
        self._board.record(record)
        match record:
            case RunStarted():
                self._start(record)
            case RunFinished():
                self._stop()
                self._console.print(render_leaderboard(self._board.ranked()))
                for line in closing_lines(record.summary, self._board.run.resumed):
                    self._say(line)
            case TrialFinished(by=str()) | TrialChanged(by=str()) if not record.replayed:
                self._say(command_line(record))
            case TrialFinished(replayed=False):
                failure = self._failures.line(record, len(self._board.rows))
                if failure is not None:
                    self._say(failure)
            case WorkerChanged(alive=False):
                self._say(f"worker {record.worker} was lost: {clean(record.cause or 'unknown')}")
        if self._live is not None and self._pace.is_due:
            self._pace.run(self._draw)

    def flush(self) -> None:
        """Draw what the last records brought."""
        if self._live is not None:
            self._pace.run(self._draw)

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

    def _draw(self) -> None:
        if self._live is not None:
            height = max(1, min(ROWS, self._console.height - 5))
            self._live.update(render_board(self._board, height=height), refresh=True)

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
