"""Runs as pieces of HTML for notebooks: tables, curves, what the workers do.

Everything that users may have named is escaped. Colours are those of the notebook's theme, where it
has one.
"""

from __future__ import annotations

import math
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import TypeAlias

from cerebro.track.board import Board
from cerebro.track.plain import closing_lines, describe, progress_line
from cerebro.track.ranking import Ranking
from cerebro.track.records import RunFinished
from cerebro.track.standings import leaderboard_cells
from cerebro.track.text import clean, show_trials
from cerebro.types import trial_id

#: Values of a metric of a trial, epoch by epoch.
Curve: TypeAlias = Callable[[int, str], Iterable[float]]
ROWS = 12
#: Lines of a picture, best trials first: more of them nobody can tell apart.
CURVES = 12
WORKERS = 8
_WIDTH, _HEIGHT, _LEFT, _TOP, _BOTTOM = 340, 150, 46, 18, 16
#: Points of a curve; of more, every n-th.
_POINTS = 200

_STYLE = """<style>
.cerebro{font:13px/1.5 var(--jp-ui-font-family,system-ui,sans-serif);
color:var(--jp-ui-font-color1,inherit);max-width:60em}
.cerebro table{border-collapse:collapse;margin:.4em 0;font-size:inherit}
.cerebro td,.cerebro th{padding:.1em .8em .1em 0;text-align:left!important;border:0;
white-space:nowrap;font-variant-numeric:tabular-nums}
.cerebro th{font-weight:600;border-bottom:1px solid #8886}
.cerebro tr.best td{font-weight:600;color:#1a8a4a}
.cerebro .dim{opacity:.65}
.cerebro .bar{height:4px;background:#8883;border-radius:2px;margin:.3em 0;max-width:40em}
.cerebro .bar div{height:4px;background:#1a8a4a;border-radius:2px}
.cerebro svg{margin-right:1em;max-width:100%}
.cerebro svg text{font-size:10px;fill:currentColor}
.cerebro a.button{display:inline-block;padding:.25em .9em;border:1px solid #8888;
border-radius:4px;text-decoration:none;color:inherit}
</style>"""


def framed(*parts: str) -> str:
    """Parts put together, with the styles they need."""
    return f'{_STYLE}<div class="cerebro">{"".join(parts)}</div>'


def leaderboard_html(ranking: Ranking, *, limit: int = ROWS) -> str:
    """The leaderboard as a table.

    >>> from cerebro.track.ranking import Criteria, TrialRow, rank
    >>> from cerebro.types import Mode
    >>> rows = [TrialRow(trial=0, params={"act": "<relu>"})]
    >>> page = leaderboard_html(rank(rows, Criteria(metric="val_loss", mode=Mode.MIN)))
    >>> "<td>&lt;relu&gt;</td>" in page
    True
    """
    header, lines, _ = leaderboard_cells(ranking, limit)
    head = "".join(f"<th>{escape(name)}</th>" for name in header)
    body = []
    for config, line in zip(ranking.configs, lines, strict=False):
        mark = ' class="best"' if config.rank == 1 else ""
        cells = "".join(f"<td>{escape(cell)}</td>" for cell in line)
        body.append(f"<tr{mark}>{cells}</tr>")
    more = len(ranking.configs) - limit
    rest = _dim(f"… and {more} more") if more > 0 else ""
    return f"<table><tr>{head}</tr>{''.join(body)}</table>{rest}"


def result_html(ranking: Ranking, curve: Curve, path: str, state: str) -> str:
    """What a result shows of itself: where it is, how it stands, curves, and the leaderboard."""
    return framed(_dim(f"{path}: {state}"), _charts(ranking, curve), leaderboard_html(ranking))


def board_html(
    board: Board,
    curves: Mapping[int, Mapping[str, array[float]]],
    notes: Sequence[str] = (),
    finished: RunFinished | None = None,
) -> str:
    """A run as it stands: how far it is, what the workers do, curves, and the leaderboard."""
    parts = [_line(describe(board.run))]
    if finished is None:
        parts += [_bar(board), _line(progress_line(board)), _dim(_busy(board))]
    ranking = board.ranked()
    charts = _charts(ranking, lambda trial, name: curves.get(trial, {}).get(name, ()))
    parts += [charts, leaderboard_html(ranking)]
    parts += [_line(note) for note in notes]
    if finished is not None:
        parts += [_dim(line) for line in closing_lines(finished.summary, board.run.resumed)]
    return framed(*parts)


def _line(text: str) -> str:
    return f"<div>{escape(text)}</div>"


def _dim(text: str) -> str:
    return f'<div class="dim">{escape(text)}</div>' if text else ""


def _bar(board: Board) -> str:
    share = min(1.0, board.visits_done / max(1, board.visits_total))
    return f'<div class="bar"><div style="width:{100 * share:.1f}%"></div></div>'


def _busy(board: Board) -> str:
    """What each worker has in hand."""
    flights = sorted(board.in_flight.items())
    shown = [
        f"worker {worker}: {show_trials(flight.trials)} epoch {flight.epoch + 1} "
        f"{'val ' if flight.phase == 'eval' else ''}shard {flight.shard}"
        for worker, flight in flights[:WORKERS]
    ]
    more = len(flights) - WORKERS
    return " · ".join([*shown, f"{more} more"] if more > 0 else shown)


def _charts(ranking: Ranking, curve: Curve) -> str:
    """The metric that ranks, and the training loss, of the best trials."""
    rows, best = ranking.rows[:CURVES], ranking.best
    pictures = []
    for name in dict.fromkeys((ranking.criteria.metric, "train_loss")):
        lines = {row.trial: list(enumerate(curve(row.trial, name), start=1)) for row in rows}
        picture = chart_svg(name, lines, None if best is None else best.trial)
        pictures.append(picture)
    return "".join(pictures)


def chart_svg(
    title: str, lines: Mapping[int, Sequence[tuple[float, float]]], best: int | None = None
) -> str:
    """Curves by epoch as a picture; one with a single point is a dot.

    >>> chart_svg("val_loss", {0: []})
    ''
    >>> page = chart_svg("val_loss", {0: [(1, 0.5), (2, 0.25)], 1: [(1, 0.4)]}, best=0)
    >>> page.count("<polyline"), page.count("<circle")
    (1, 1)
    """
    kept = {trial: _finite(points) for trial, points in lines.items()}
    kept = {trial: points for trial, points in kept.items() if points}
    if not kept:
        return ""
    every = [point for points in kept.values() for point in points]
    low, high = min(y for _, y in every), max(y for _, y in every)
    last = max(x for x, _ in every)
    drawn = sorted(kept, key=lambda trial: trial == best)  # the best one on top
    shapes = "".join(
        _curve(trial, kept[trial], last, low, high, is_best=trial == best) for trial in drawn
    )
    bottom = _HEIGHT - _BOTTOM
    labels = (
        _text(_LEFT, 12, clean(title, 40)),
        _text(_LEFT - 4, _TOP + 8, f"{high:.3g}", "end"),
        _text(_LEFT - 4, bottom, f"{low:.3g}", "end"),
        _text(_LEFT, _HEIGHT - 3, "epoch 1"),
        _text(_WIDTH - 2, _HEIGHT - 3, f"{last:g}" if last > 1 else "", "end"),
    )
    frame = f'<path d="M{_LEFT} {_TOP}V{bottom}H{_WIDTH - 2}" fill="none" stroke="#8888"/>'
    return (
        f'<svg width="{_WIDTH}" height="{_HEIGHT}" viewBox="0 0 {_WIDTH} {_HEIGHT}" '
        f'role="img">{frame}{shapes}{"".join(labels)}</svg>'
    )


def _finite(points: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    found = [(x, y) for x, y in points if math.isfinite(y)]
    step = math.ceil(len(found) / _POINTS)
    return found if step <= 1 else [*found[:-1:step], found[-1]]


def _curve(
    trial: int,
    points: Sequence[tuple[float, float]],
    last: float,
    low: float,
    high: float,
    *,
    is_best: bool,
) -> str:
    wide, tall = _WIDTH - _LEFT - 4, _HEIGHT - _TOP - _BOTTOM
    # Halved, for the difference of two finite numbers need not be one.
    spread = (high / 2 - low / 2) or 1.0

    def place(x: float, y: float) -> tuple[str, str]:
        right = wide * (x - 1) / max(1.0, last - 1)
        return f"{_LEFT + right:.1f}", f"{_TOP + tall * ((high / 2 - y / 2) / spread):.1f}"

    title = f"<title>{trial_id(trial)}</title>"
    colour = "#1a8a4a" if is_best else f"hsl({(trial * 137) % 360} 45% 55%)"
    width = 2 if is_best else 1
    if len(points) == 1:
        x, y = place(*points[0])
        return f'<circle cx="{x}" cy="{y}" r="{width + 1}" fill="{colour}">{title}</circle>'
    path = " ".join(",".join(place(*point)) for point in points)
    return (
        f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="{width}">'
        f"{title}</polyline>"
    )


def _text(x: int, y: int, text: str, anchor: str = "start") -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(text)}</text>'
