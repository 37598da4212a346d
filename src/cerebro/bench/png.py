"""Charts as PNG files, for papers and slides; drawn with Pillow, where that is there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from cerebro.bench.chart import BarChart, Frame, LineChart, axis_of, lay_out, style_of, tick_text
from cerebro.errors import MissingDependencyError

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont, ImageFont

#: Drawn so many times as large, then made smaller: edges become smooth.
_SCALE = 2
#: Of the picture, against the units of a frame.
_ZOOM = 1.5
_INK = "#333333"
_RULE = "#d8dcdf"
_FAINT = "#aaaaaa"
_HATCHES = ((), (45,), (135,), (0,), (0, 90), (45, 135))
_SHADES = ("#dfe7ec", "#f3d9cc", "#d6e6d3", "#e3dbee", "#efe5c6", "#f0d5e1")
_BAR = 24.0

Point = tuple[float, float]


class Canvas:
    """A white picture whose units are those of a frame."""

    def __init__(self, width: float, height: float) -> None:
        try:
            from PIL import Image, ImageDraw, ImageFont
        except ImportError as error:
            raise MissingDependencyError(
                "PNG files need Pillow. Install it with `pip install 'cerebro[images]'`."
            ) from error
        self._unit = _SCALE * _ZOOM
        size = round(width * self._unit), round(height * self._unit)
        self._image = Image.new("RGB", size, "white")
        self._draw: ImageDraw.ImageDraw = ImageDraw.Draw(self._image)
        self._font: FreeTypeFont | ImageFont.ImageFont = ImageFont.load_default(
            size=round(12 * self._unit)
        )
        self._smaller = Image.Resampling.LANCZOS

    def text(self, at: Point, text: str, anchor: str = "mm") -> None:
        """Text at a place; `anchor` says which point of it, as Pillow does."""
        self._draw.text(self._scaled(at), text, fill=_INK, font=self._font, anchor=anchor)

    def upright(self, at: Point, text: str) -> None:
        """Text that is read from below, around a place."""
        from PIL import Image, ImageDraw

        box = self._draw.textbbox((0, 0), text, font=self._font)
        label = Image.new("RGB", (math.ceil(box[2]) + 2, math.ceil(box[3]) + 4), "white")
        ImageDraw.Draw(label).text((1, 0), text, fill=_INK, font=self._font)
        turned = label.rotate(90, expand=True)
        x, y = self._scaled(at)
        place = round(x - turned.width / 2), round(y - turned.height / 2)
        self._image.paste(turned, place)

    def line(
        self,
        points: Sequence[Point],
        colour: str = _INK,
        *,
        width: float = 1.0,
        dash: Sequence[int] = (),
    ) -> None:
        thick = max(1, round(width * self._unit))
        for piece in dashed(points, dash) if dash else [points]:
            self._draw.line([self._scaled(p) for p in piece], fill=colour, width=thick)

    def box(self, corner: Point, size: Point, fill: str, hatch: Sequence[int], ink: str) -> None:
        """A framed box with lines across it at these angles."""
        (x, y), (width, height) = corner, size
        ends = [self._scaled((x, y)), self._scaled((x + width, y + height))]
        self._draw.rectangle(ends, fill=fill)
        for angle in hatch:
            for start, end in _hatched(x, y, width, height, angle):
                self.line([start, end], ink, width=0.7)
        self._draw.rectangle(ends, outline=_INK, width=_SCALE)

    def marker(self, at: Point, shape: str, colour: str) -> None:
        corners = {
            "square": ((-3, -3), (3, -3), (3, 3), (-3, 3)),
            "triangle": ((0, -4), (4, 3), (-4, 3)),
            "diamond": ((0, -4.4), (3.6, 0), (0, 4.4), (-3.6, 0)),
        }
        x, y = at
        thick = round(1.4 * self._unit)
        if shape in corners:
            around = [self._scaled((x + dx, y + dy)) for dx, dy in corners[shape]]
            self._draw.polygon(around, fill="white", outline=colour, width=thick)
        elif shape == "circle":
            ends = [self._scaled((x - 3.2, y - 3.2)), self._scaled((x + 3.2, y + 3.2))]
            self._draw.ellipse(ends, fill="white", outline=colour, width=thick)
        else:
            turn = 0.0 if shape == "plus" else math.pi / 4
            for angle in (turn, turn + math.pi / 2):
                dx, dy = 4 * math.cos(angle), 4 * math.sin(angle)
                self.line([(x - dx, y - dy), (x + dx, y + dy)], colour, width=1.4)

    def width_of(self, text: str) -> float:
        return float(self._draw.textlength(text, font=self._font)) / self._unit

    def save(self, path: Path) -> None:
        width, height = self._image.size
        small = self._image.resize((width // _SCALE, height // _SCALE), self._smaller)
        small.save(path, format="PNG", optimize=True)

    def _scaled(self, point: Point) -> Point:
        return point[0] * self._unit, point[1] * self._unit


def line_png(chart: LineChart, path: Path, frame: Frame | None = None) -> None:
    """Write the chart with its title and a legend."""
    frame = (frame or Frame(top=34.0)).headed(len(chart.marks))
    placed = lay_out(chart, frame)
    canvas = Canvas(frame.width, frame.height + 20 * len(chart.series) + 8)
    base = frame.top + frame.plot_height
    canvas.text((frame.left, 16), chart.title, "lm")
    for tick in placed.y.ticks:
        y = base - placed.y.place(tick, frame.plot_height)
        canvas.line([(frame.left, y), (frame.width - frame.right, y)], _RULE)
        canvas.text((frame.left - 6, y), tick_text(tick), "rm")
    for tick in placed.x.ticks:
        x = frame.left + placed.x.place(tick, frame.plot_width)
        canvas.line([(x, base), (x, base + 4)])
        canvas.text((x, base + 13), tick_text(tick))
    canvas.text((frame.left + frame.plot_width / 2, base + 32), chart.x_label)
    canvas.upright((12, frame.top + frame.plot_height / 2), chart.y_label)
    for x in placed.faint:
        canvas.line([(x, frame.top), (x, base)], _FAINT, dash=(1, 3))
    for number, (x, label) in enumerate(placed.marks):
        canvas.line([(x, placed.mark_row(number) - 6), (x, base)], "#777777", dash=(1, 3))
        side, anchor = (3, "lm") if placed.has_room(x) else (-3, "rm")
        canvas.text((x + side, placed.mark_row(number)), label, anchor)
    for number, points in enumerate(placed.lines):
        _draw_line(canvas, points, number)
    for number, series in enumerate(chart.series):
        y = frame.height + 12 + 20 * number
        _draw_line(canvas, [(frame.left, y), (frame.left + 17, y), (frame.left + 34, y)], number)
        canvas.text((frame.left + 42, y), series.label, "lm")
    canvas.save(path)


def bar_png(chart: BarChart, path: Path) -> None:
    """Write the chart with its title and a legend."""
    width, right, top = 760.0, 60.0, 58.0
    probe = Canvas(1, 1)
    left = min(340.0, 20 + max((probe.width_of(label) for label, _ in chart.bars), default=0.0))
    room = width - left - right
    canvas = Canvas(width, top + _BAR * len(chart.bars) + 48)
    axis = axis_of([sum(lengths) for _, lengths in chart.bars], from_zero=True)
    canvas.text((left, 14), chart.title, "lm")
    wides = [34 + canvas.width_of(part) for part in chart.parts]
    x = max(4.0, min(left, width - sum(wides)))
    for number, part in enumerate(chart.parts):
        _draw_box(canvas, (x, 32), (14, 12), number)
        canvas.text((x + 20, 38), part, "lm")
        x += wides[number]
    for row, (label, lengths) in enumerate(chart.bars):
        y, x = top + _BAR * row, left
        canvas.text((left - 8, y + 8), label, "rm")
        for number, length in enumerate(lengths):
            wide = axis.place(axis.low + length, room)
            if wide > 0.3:
                _draw_box(canvas, (x, y), (wide, _BAR - 7), number)
            x += wide
        canvas.text((x + 6, y + 8), f"{sum(lengths):.3g}", "lm")
    base = top + _BAR * len(chart.bars)
    for tick in axis.ticks:
        x = left + axis.place(tick, room)
        canvas.line([(x, base), (x, base + 4)])
        canvas.text((x, base + 14), tick_text(tick))
    canvas.text((left + room / 2, base + 34), chart.x_label)
    canvas.save(path)


def _draw_line(canvas: Canvas, points: Sequence[Point], number: int) -> None:
    if not points:
        return
    style = style_of(number)
    canvas.line(points, style.colour, width=1.6, dash=style.dash)
    every = max(1, len(points) // 8)
    for point in points[every // 2 :: every]:
        canvas.marker(point, style.marker, style.colour)


def _draw_box(canvas: Canvas, corner: Point, size: Point, number: int) -> None:
    kind = number % len(_HATCHES)
    canvas.box(corner, size, _SHADES[kind], _HATCHES[kind], style_of(number).colour)


def dashed(points: Sequence[Point], pattern: Sequence[int]) -> Iterator[list[Point]]:
    """The pieces of a line that are drawn, where every other length of the pattern is a gap.

    >>> list(dashed([(0.0, 0.0), (10.0, 0.0)], (4, 2)))
    [[(0.0, 0.0), (4.0, 0.0)], [(6.0, 0.0), (10.0, 0.0)]]
    """
    lengths = [*pattern, *pattern] if len(pattern) % 2 else list(pattern)
    place, left = 0, float(lengths[0])
    piece: list[Point] = [points[0]]
    for (x, y), end in itertools.pairwise(points):
        at = x, y
        while (far := math.dist(at, end)) > left:
            part = left / far
            at = at[0] + part * (end[0] - at[0]), at[1] + part * (end[1] - at[1])
            if place % 2 == 0:
                yield [*piece, at]
            piece = [at]
            place += 1
            left = float(lengths[place % len(lengths)])
        left -= far
        piece.append(end)
    if place % 2 == 0 and len(piece) > 1:
        yield piece


def _hatched(
    x: float, y: float, width: float, height: float, angle: int
) -> Iterator[tuple[Point, Point]]:
    """Lines across a box, six units apart."""
    if angle in (0, 90):
        span, step = (height, (0.0, 1.0)) if angle == 0 else (width, (1.0, 0.0))
        for number in range(1, math.ceil(span / 6)):
            dx, dy = step[0] * 6 * number, step[1] * 6 * number
            end = (x + width, y + dy) if angle == 0 else (x + dx, y + height)
            yield (x + dx, y + dy), end
        return
    for number in range(1, math.ceil((width + height) / 6)):
        run = 6.0 * number
        # Where the diagonal enters and leaves the box.
        a = (min(run, width), max(0.0, run - width))
        b = (max(0.0, run - height), min(run, height))
        (ax, ay), (bx, by) = (
            (a, b) if angle == 45 else ((a[0], height - a[1]), (b[0], height - b[1]))
        )
        yield (x + ax, y + ay), (x + bx, y + by)
