"""Charts as SVG that stands in a page: text stays text, and lines differ by more than colour."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from cerebro.bench.chart import (
    BarChart,
    Frame,
    LineChart,
    Style,
    axis_of,
    lay_out,
    style_of,
    tick_text,
)

#: Markers on a line, about so many.
_MARKERS = 8
_BAR = 22.0
_FAINT = "#aaa"


def line_svg(chart: LineChart, frame: Frame | None = None) -> str:
    """The chart, with a legend below it.

    >>> from cerebro.bench.chart import Series
    >>> chart = LineChart(name="c", title="CPU", x_label="s", y_label="%",
    ...                   series=(Series("node <0>", (0.0, 1.0), (1.0, 2.0)),))
    >>> "node &lt;0&gt;" in line_svg(chart), line_svg(chart).startswith("<svg ")
    (True, True)
    """
    frame = (frame or Frame()).headed(len(chart.marks))
    placed = lay_out(chart, frame)
    rows = _legend_rows(chart, frame)
    height = frame.height + 18 * len(rows) + 8
    parts = [_open(chart.title, frame.width, height)]
    base = frame.top + frame.plot_height
    for tick in placed.y.ticks:
        at = base - placed.y.place(tick, frame.plot_height)
        parts.append(_rule(frame.left, at, frame.width - frame.right, at))
        parts.append(_text(frame.left - 6, at + 4, tick_text(tick), "end"))
    for tick in placed.x.ticks:
        at = frame.left + placed.x.place(tick, frame.plot_width)
        parts.append(_rule(at, base, at, base + 4))
        parts.append(_text(at, base + 17, tick_text(tick), "middle"))
    parts.append(_text(frame.left + frame.plot_width / 2, base + 34, chart.x_label, "middle"))
    parts.append(_upright(14, frame.top + frame.plot_height / 2, chart.y_label))
    parts += [_mark(at, frame.top, base, _FAINT) for at in placed.faint]
    for number, (at, label) in enumerate(placed.marks):
        parts.append(_mark(at, placed.mark_row(number) - 6, base))
        side, anchor = (3, "start") if placed.has_room(at) else (-3, "end")
        parts.append(_text(at + side, placed.mark_row(number) + 4, label, anchor))
    for number, line in enumerate(placed.lines):
        parts.append(_line(line, style_of(number)))
    for row, labels in enumerate(rows):
        parts += _legend(labels, frame.left, frame.height + 12 + 18 * row)
    return "".join([*parts, "</svg>"])


def bar_svg(chart: BarChart, width: float = 760.0) -> str:
    """The chart: each part has a pattern of its own, named in the legend.

    >>> chart = BarChart(name="split", title="Split", x_label="ms", parts=("data", "compute"),
    ...                  bars=(("1 node", (1.0, 3.0)),))
    >>> bar_svg(chart).count('class="bar"')
    2
    """
    left = min(340.0, 14 + 6.6 * max((len(label) for label, _ in chart.bars), default=0))
    right, top = 60.0, 28.0
    room = width - left - right
    height = top + _BAR * len(chart.bars) + 40
    axis = axis_of([sum(lengths) for _, lengths in chart.bars], from_zero=True)
    parts = [_open(chart.title, width, height), _patterns(chart.name, len(chart.parts))]
    wides = [34 + 6.8 * len(part) for part in chart.parts]
    at = max(4.0, min(left, width - sum(wides)))
    for number, part in enumerate(chart.parts):
        parts.append(_box(at, 2, 14, 12, f"{chart.name}-{number}"))
        parts.append(_text(at + 19, 12, part, "start"))
        at += wides[number]
    for row, (label, lengths) in enumerate(chart.bars):
        y, x = top + _BAR * row, left
        parts.append(_text(left - 8, y + 13, label, "end"))
        for number, length in enumerate(lengths):
            wide = axis.place(axis.low + length, room)
            if wide > 0.05:
                parts.append(_box(x, y, wide, _BAR - 6, f"{chart.name}-{number}", "bar"))
            x += wide
        parts.append(_text(x + 6, y + 13, f"{sum(lengths):.3g}", "start"))
    base = top + _BAR * len(chart.bars)
    for tick in axis.ticks:
        x = left + axis.place(tick, room)
        parts.append(_rule(x, base, x, base + 4))
        parts.append(_text(x, base + 17, tick_text(tick), "middle"))
    parts.append(_text(left + room / 2, base + 34, chart.x_label, "middle"))
    return "".join([*parts, "</svg>"])


def _open(title: str, width: float, height: float) -> str:
    return (
        f'<svg viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{escape(title)}" style="max-width:{width:g}px">'
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _upright(x: float, y: float, text: str) -> str:
    turn = f'transform="rotate(-90 {x:g} {y:g})"'
    return f'<text x="{x:g}" y="{y:g}" text-anchor="middle" {turn}>{escape(text)}</text>'


def _rule(x1: float, y1: float, x2: float, y2: float) -> str:
    return f'<line class="rule" x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}"/>'


def _mark(x: float, top: float, base: float, colour: str = "#777") -> str:
    return (
        f'<line x1="{x:.1f}" y1="{top:g}" x2="{x:.1f}" y2="{base:g}" stroke="{colour}" '
        'stroke-dasharray="1 3"/>'
    )


def _box(x: float, y: float, width: float, height: float, fill: str, kind: str = "key") -> str:
    return (
        f'<rect class="{kind}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="url(#{fill})" stroke="#333" stroke-width="0.7"/>'
    )


def _line(points: Sequence[tuple[float, float]], style: Style) -> str:
    if not points:
        return ""
    path = " ".join(f"{x:.1f},{y:.1f}" for x, y in points)
    dash = f' stroke-dasharray="{" ".join(map(str, style.dash))}"' if style.dash else ""
    drawn = (
        f'<polyline points="{path}" fill="none" stroke="{style.colour}" stroke-width="1.6"{dash}/>'
    )
    every = max(1, len(points) // _MARKERS)
    marks = "".join(_marker(x, y, style) for x, y in points[every // 2 :: every])
    return drawn + marks


def _marker(x: float, y: float, style: Style) -> str:
    paint = f'fill="#fff" stroke="{style.colour}" stroke-width="1.5"'
    if style.marker == "circle":
        return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3.2" {paint}/>'
    if style.marker == "square":
        return f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" {paint}/>'
    corners = {
        "triangle": ((0, -4), (3.8, 3), (-3.8, 3)),
        "diamond": ((0, -4.4), (3.6, 0), (0, 4.4), (-3.6, 0)),
    }
    if style.marker in corners:
        path = " ".join(f"{x + dx:.1f},{y + dy:.1f}" for dx, dy in corners[style.marker])
        return f'<polygon points="{path}" {paint}/>'
    strokes = "M-3,-3L3,3M-3,3L3,-3" if style.marker == "cross" else "M0,-4L0,4M-4,0L4,0"
    return f'<path d="{strokes}" transform="translate({x:.1f} {y:.1f})" {paint}/>'


def _legend_rows(chart: LineChart, frame: Frame) -> list[list[tuple[int, str]]]:
    """Labels with their numbers, as many in a row as have room."""
    rows: list[list[tuple[int, str]]] = [[]]
    room = frame.plot_width
    for number, series in enumerate(chart.series):
        need = 52 + 6.4 * len(series.label)
        if need > room and rows[-1]:
            rows.append([])
            room = frame.plot_width
        room -= need
        rows[-1].append((number, series.label))
    return rows


def _legend(labels: Sequence[tuple[int, str]], x: float, y: float) -> Iterator[str]:
    for number, label in labels:
        yield _line([(x, y), (x + 17, y), (x + 34, y)], style_of(number))
        yield _text(x + 40, y + 4, label, "start")
        x += 52 + 6.4 * len(label)


def _patterns(name: str, count: int) -> str:
    """Fills that can be told apart in black and white."""
    strokes = ("", "M0,6L6,0", "M0,0L6,6", "M0,3L6,3", "M3,0L3,6M0,3L6,3", "M2,2h2v2h-2z")
    shades = ("#dfe7ec", "#f3d9cc", "#d6e6d3", "#e3dbee", "#efe5c6", "#f0d5e1")
    defined = "".join(
        f'<pattern id="{name}-{number}" width="6" height="6" patternUnits="userSpaceOnUse">'
        f'<rect width="6" height="6" fill="{shades[number % 6]}"/>'
        f'<path d="{strokes[number % 6]}" stroke="{style_of(number).colour}" fill="none"/>'
        "</pattern>"
        for number in range(count)
    )
    return f"<defs>{defined}</defs>"
