"""Charts as values: what is drawn, and where its lines and ticks fall; pure."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace


@dataclass(frozen=True, slots=True)
class Series:
    """A line; points that are not finite are left out."""

    label: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]

    @property
    def points(self) -> list[tuple[float, float]]:
        return [
            (x, y)
            for x, y in zip(self.xs, self.ys, strict=True)
            if math.isfinite(x) and math.isfinite(y)
        ]


@dataclass(frozen=True, slots=True, kw_only=True)
class LineChart:
    """Lines over one axis."""

    name: str
    title: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    #: Whether the y axis begins at zero.
    from_zero: bool = True
    #: The y axis is at least so long.
    min_span: float = 0.0
    #: Upright lines: where, and what happened there.
    marks: tuple[tuple[float, str], ...] = ()
    #: Fainter ones, where the same happened again.
    faint: tuple[float, ...] = ()

    @property
    def is_empty(self) -> bool:
        return not any(series.points for series in self.series)


@dataclass(frozen=True, slots=True, kw_only=True)
class BarChart:
    """Horizontal bars, each made of parts that follow each other."""

    name: str
    title: str
    x_label: str
    parts: tuple[str, ...]
    #: Label of a bar, and the length of each of its parts.
    bars: tuple[tuple[str, tuple[float, ...]], ...]


@dataclass(frozen=True, slots=True)
class Axis:
    """From data to a line of so many units; `ticks` are round numbers."""

    low: float
    high: float
    ticks: tuple[float, ...]

    def place(self, value: float, length: float) -> float:
        """Where a value is on a line of that length."""
        return (value - self.low) / (self.high - self.low) * length


#: Height of what an upright line says.
MARK_ROW = 14.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """Sizes of a chart; the plot is what is left inside the margins."""

    width: float = 760.0
    height: float = 300.0
    left: float = 72.0
    right: float = 16.0
    top: float = 10.0
    bottom: float = 44.0

    @property
    def plot_width(self) -> float:
        return self.width - self.left - self.right

    @property
    def plot_height(self) -> float:
        return self.height - self.top - self.bottom

    def headed(self, marks: int) -> Frame:
        """With room above the plot for what so many upright lines say, each in its own row."""
        more = MARK_ROW * marks
        return replace(self, top=self.top + more, height=self.height + more)


@dataclass(frozen=True, slots=True)
class Style:
    """How one line differs from the others: by more than its colour."""

    colour: str
    dash: tuple[int, ...]
    marker: str


_COLOURS = ("#1b5e83", "#b4431c", "#3b7d3a", "#6b4c9a", "#8a6d1a", "#a0366b", "#4a4a4a", "#1f7f7a")
_DASHES: tuple[tuple[int, ...], ...] = ((), (7, 4), (2, 3), (9, 3, 2, 3), (12, 4), (4, 2, 1, 2))
_MARKERS = ("circle", "square", "triangle", "diamond", "cross", "plus")


def style_of(number: int) -> Style:
    """The style of the n-th line of a chart; each differs in colour, dashes and marker.

    >>> style_of(0).marker, style_of(1).dash
    ('circle', (7, 4))
    """
    kinds = len(_MARKERS)
    return Style(
        _COLOURS[number % len(_COLOURS)],
        # After a round of markers the dashes are one ahead.
        _DASHES[(number + number // kinds) % len(_DASHES)],
        _MARKERS[number % kinds],
    )


#: Values that differ by no more, as a part of them, are a flat line.
_FLAT = 1e-5


def axis_of(
    values: Sequence[float], *, from_zero: bool, count: int = 5, min_span: float = 0.0
) -> Axis:
    """An axis with round ticks that holds all values, and is at least so long.

    >>> axis_of([3, 97], from_zero=True)
    Axis(low=0.0, high=100.0, ticks=(0.0, 20.0, 40.0, 60.0, 80.0, 100.0))
    """
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    low = min(0.0, low) if from_zero else low
    low, high = _widened(low, high, min_span)
    if high - low <= _FLAT * abs(low) and low and not from_zero:
        # A flat line is in the middle: twice as much would be no accuracy.
        low, high = low - 0.05 * abs(low), high + 0.05 * abs(high)
    elif high <= low:
        high = low + (abs(low) or 1.0)
    # Below this, numbers of this size have no round ones between them.
    high = max(high, low + 1e-6 * max(abs(low), abs(high), 1e-30))
    step = _round_step((high - low) / count)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    ticks = tuple(float(f"{number * step:.12g}") for number in range(first, last + 1))
    return Axis(ticks[0], ticks[-1], ticks)


def _widened(low: float, high: float, span: float) -> tuple[float, float]:
    """To both sides, but not past 0 or 1, where shares end.

    >>> _widened(0.5, 0.5, 0.25), _widened(0.0, 0.125, 0.25), _widened(0.875, 1.0, 0.25)
    ((0.375, 0.625), (0.0, 0.25), (0.75, 1.0))
    """
    more = (span - (high - low)) / 2
    if more <= 0:
        return low, high
    if low - more < 0 <= low:
        return 0.0, span
    if high <= 1 < high + more:
        return 1 - span, 1.0
    return low - more, high + more


def _round_step(step: float) -> float:
    power = 10.0 ** math.floor(math.log10(step))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10) if power * factor >= step * 0.999)


def tick_text(value: float) -> str:
    """A tick as people write it.

    >>> tick_text(0.25), tick_text(20000.0), tick_text(2500000.0), tick_text(3.0)
    ('0.25', '20k', '2.5M', '3')
    """
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= limit:
            scale = 1e3 if unit == "k" else limit
            return f"{value / scale:g}{unit}"
    return f"{value:g}"


def thinned(points: Sequence[tuple[float, float]], limit: int = 600) -> list[tuple[float, float]]:
    """At most about so many points: of each stretch the lowest and the highest are kept.

    >>> len(thinned([(float(x), float(x % 7)) for x in range(10_000)])) <= 600
    True
    """
    if len(points) <= limit:
        return list(points)
    size = -(-2 * len(points) // limit)
    kept: list[tuple[float, float]] = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        kept += sorted({min(stretch, key=lambda p: p[1]), max(stretch, key=lambda p: p[1])})
    return kept


@dataclass(frozen=True, slots=True)
class Layout:
    """A line chart put in place."""

    frame: Frame
    x: Axis
    y: Axis
    #: Of each series, in order, the places of its points.
    lines: tuple[tuple[tuple[float, float], ...], ...] = field(default=())
    #: Places of upright lines, with what they say.
    marks: tuple[tuple[float, str], ...] = field(default=())
    #: Places of fainter ones.
    faint: tuple[float, ...] = field(default=())

    def has_room(self, at: float) -> bool:
        """Whether words fit to the right of an upright line."""
        return at < self.frame.left + 0.8 * self.frame.plot_width

    def mark_row(self, number: int) -> float:
        """The middle of the row above the plot in which the n-th upright line is named."""
        return self.frame.top - MARK_ROW * (len(self.marks) - number - 0.5)


def lay_out(chart: LineChart, frame: Frame) -> Layout:
    """Where everything of a line chart is, in units of the frame."""
    found = [thinned(series.points) for series in chart.series]
    x = axis_of([px for line in found for px, _ in line], from_zero=True, count=8)
    ys = [py for line in found for _, py in line]
    y = axis_of(ys, from_zero=chart.from_zero, min_span=chart.min_span)
    lines = tuple(
        tuple(
            (
                frame.left + x.place(px, frame.plot_width),
                frame.top + frame.plot_height - y.place(py, frame.plot_height),
            )
            for px, py in line
        )
        for line in found
    )
    marks = tuple(
        (frame.left + x.place(at, frame.plot_width), label)
        for at, label in chart.marks
        if x.low <= at <= x.high
    )
    faint = tuple(
        frame.left + x.place(at, frame.plot_width) for at in chart.faint if x.low <= at <= x.high
    )
    return Layout(frame, x, y, lines, marks, faint)
