"""Tables on standard output: aligned text, readable without colour and in a pipe."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from cerebro.results import Result
from cerebro.track.ranking import Ranking
from cerebro.track.standings import LEADERBOARD_ROWS, format_leaderboard


def print_trials(result: Result, limit: int = LEADERBOARD_ROWS) -> None:
    """The leaderboard of a run; on a terminal the best trial stands out."""
    print_ranking(result.leaderboard().ranking, limit)


def print_ranking(ranking: Ranking, limit: int = LEADERBOARD_ROWS) -> None:
    """The same for trials already ranked."""
    if sys.stdout.isatty():
        from rich.console import Console

        from cerebro.track.console import render_leaderboard

        Console().print(render_leaderboard(ranking, limit=limit))
    else:
        print(format_leaderboard(ranking, limit=limit))


def format_columns(rows: Sequence[Sequence[str]], indent: str = "") -> str:
    """Rows of cells, each column as wide as its widest cell.

    >>> print(format_columns([["epoch", "loss"], ["0", "0.25"]]))
    epoch  loss
    0      0.25
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return "\n".join(indent + "  ".join(map(str.ljust, row, widths)).rstrip() for row in rows)


def format_bytes(count: float) -> str:
    """A size in units of 1000.

    >>> format_bytes(999), format_bytes(12_345_678)
    ('999 B', '12.3 MB')
    """
    units = ["TB", "GB", "MB", "kB", "B"]
    while count >= 999.95 and len(units) > 1:
        count /= 1000
        units.pop()
    return f"{count:.0f} B" if units[-1] == "B" else f"{count:.1f} {units[-1]}"
