"""Tables on standard output: aligned text, the same on a terminal and in a pipe."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.results import Result
from cerebro.track.board import TrialRow
from cerebro.track.plain import LEADERBOARD_ROWS, format_leaderboard
from cerebro.track.text import clean


def format_trials(result: Result, limit: int = LEADERBOARD_ROWS) -> str:
    """The leaderboard of a run."""
    order = {row["trial"]: place for place, row in enumerate(result.leaderboard())}
    rows = [
        TrialRow(
            trial=trial.number,
            params=trial.params,
            status=trial.status,
            metric=trial.metrics.get(result.metric),
            best_epoch=trial.epoch,
            metrics=trial.metrics,
            error=trial.error,
        )
        for trial in sorted(result.trials, key=lambda trial: order[trial.id])
    ]
    return format_leaderboard(rows, metric=clean(result.metric, 40), limit=limit)


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
    if count < 1000:
        return f"{count:.0f} B"
    for unit in ("kB", "MB", "GB", "TB"):
        count /= 1000
        if count < 999.95:
            break
    return f"{count:.1f} {unit}"
