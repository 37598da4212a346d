"""What a test or a prediction gave; shows itself as a table."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from cerebro.data.predictions import read_head, read_predictions
from cerebro.errors import UsageError
from cerebro.track.text import clean, show, show_count, show_seconds
from cerebro.types import Metrics

_HEAD_ROWS = 5
_HEAD_COLUMNS = 12


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class TestResult:
    """Metrics of each model: exact means over all rows of a split.

    >>> TestResult(split="test", metrics={"t0003": {"loss": 0.25}}, rows=100, seconds=0.5, path="p")
    test: 100 rows in 0.5 s (200 rows/s)
    model  loss
    t0003  0.25
    """

    # Not a class of tests, whatever its name.
    __test__: ClassVar[bool] = False

    split: str
    #: Metrics by model: "t0003", or the name of a file.
    metrics: Mapping[str, Metrics]
    rows: int
    #: Of this call: next to none where all was known before.
    seconds: float
    #: The directory with result.json.
    path: str
    #: Nothing was computed: the same was asked before.
    is_repeated: bool = False

    @property
    def rows_per_s(self) -> float:
        """Rows of the split, for all models at once, in a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def __getitem__(self, model: str) -> Metrics:
        """The metrics of one model.

        >>> TestResult(split="test", metrics={}, rows=0, seconds=0.0, path="")["t0001"]
        Traceback (most recent call last):
        cerebro.errors.UsageError: unknown model 't0001'. Known: none.
        """
        if model not in self.metrics:
            known = ", ".join(self.metrics) or "none"
            raise UsageError(f"unknown model {model!r}. Known: {known}.")
        return self.metrics[model]

    def __repr__(self) -> str:
        return "\n".join([_headline(self), _text_table(*self._table())])

    def _repr_html_(self) -> str:
        return f"<p>{html.escape(_headline(self))}</p>{_html_table(*self._table())}"

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names = list(dict.fromkeys(name for found in self.metrics.values() for name in found))
        rows = [
            [clean(model, 40), *(show(found.get(name)) for name in names)]
            for model, found in self.metrics.items()
        ]
        return ["model", *(clean(name, 40) for name in names)], rows


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class PredictResult:
    """Predictions of all rows of a split, in their order, as CSV and as Parquet."""

    split: str
    #: "t0003", or the name of a file, in the order of the columns.
    models: tuple[str, ...]
    rows: int
    #: Of this call: next to none where all was known before.
    seconds: float
    #: The files, and the directory they are in.
    csv: str
    parquet: str
    path: str
    #: Nothing was computed: the same was asked before.
    is_repeated: bool = False

    @property
    def rows_per_s(self) -> float:
        """Rows of the split, for all models at once, in a second."""
        return self.rows / self.seconds if self.seconds else 0.0

    def columns(self) -> dict[str, Any]:
        """All columns by name, "id" first: NumPy arrays, or lists of text or bytes.

        A value that is a vector has a further axis. With several models the names are
        `<model>.<column>`.
        """
        return read_predictions(self.parquet)

    def __repr__(self) -> str:
        return "\n".join([_headline(self), _text_table(*self._table()), f"  {self.csv}"])

    def _repr_html_(self) -> str:
        where = html.escape(self.csv)
        return (
            f"<p>{html.escape(_headline(self))}</p>{_html_table(*self._table())}"
            f"<p><code>{where}</code></p>"
        )

    def _table(self) -> tuple[list[str], list[list[str]]]:
        names, rows = read_head(self.csv, _HEAD_ROWS)
        if len(names) > _HEAD_COLUMNS:
            names = [*names[:_HEAD_COLUMNS], "…"]
            rows = [[*row[:_HEAD_COLUMNS], "…"] for row in rows]
        shown = [[_cell(cell) for cell in row] for row in rows]
        if self.rows > len(rows):
            shown.append(["…" for _ in names])
        return [clean(name, 40) for name in names], shown


def _cell(text: str) -> str:
    """A cell of a CSV file for people: numbers to four digits.

    >>> _cell("0.12345678"), _cell("12"), _cell("cat")
    ('0.1235', '12', 'cat')
    """
    if "." not in text:
        return clean(text, 24)
    try:
        return show(float(text))
    except ValueError:
        return clean(text, 24)


def _headline(result: TestResult | PredictResult) -> str:
    what = f"{result.split}: {show_count(result.rows, 'row')}"
    if result.is_repeated:
        return f"{what} (known before)"
    took = show_seconds(result.seconds) if result.seconds >= 10 else f"{result.seconds:.2g} s"
    return f"{what} in {took} ({result.rows_per_s:.0f} rows/s)"


def _text_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join("  ".join(map(str.ljust, line, widths)).rstrip() for line in lines)


def _html_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    def line(cells: Sequence[str], tag: str) -> str:
        return "<tr>" + "".join(f"<{tag}>{html.escape(c)}</{tag}>" for c in cells) + "</tr>"

    return f"<table>{line(header, 'th')}{''.join(line(row, 'td') for row in rows)}</table>"


__all__ = ["PredictResult", "TestResult"]
