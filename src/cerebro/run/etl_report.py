"""What an ETL has done, for people and programs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from html import escape
from typing import Any

from cerebro.types import Json

_WIDTHS = (9, 9, 6, 10, 8)


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlSplit:
    """One split of an ETL: `rows_in == rows + bad + left_out`."""

    rows_in: int
    rows: int
    bad: int
    #: Rows that were not asked for (`fraction`).
    left_out: int
    shards: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EtlReport:
    """What an ETL has done. Printed, it is a table.

    >>> split = EtlSplit(rows_in=100, rows=99, bad=1, left_out=0, shards=4)
    >>> print(EtlReport(path="etl", splits={"train": split}, seconds=2.0, prepared=100))
    prepared 100 rows in 2.0 s (50 rows/s) into etl
    split     rows in     rows   bad  left out  shards
    train         100       99     1         0       4
    """

    #: The dataset's directory.
    path: str
    splits: Mapping[str, EtlSplit]
    seconds: float
    #: Rows that went through the user's code this time; the others had been done before.
    prepared: int
    #: How many rows each reason made bad.
    reasons: Mapping[str, int] = field(default_factory=dict)
    #: Where bad rows were written to, if they were.
    quarantine: str | None = None

    def __str__(self) -> str:
        return "\n".join([self._headline(), *self._table(), *self._notes()])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        lines = [
            "".join(f"<{tag}>{escape(cell)}</{tag}>" for cell in cells)
            for tag, cells in zip(["th", *["td"] * len(self.splits)], self._cells(), strict=True)
        ]
        table = "".join(f"<tr>{line}</tr>" for line in lines)
        notes = "".join(f"<br>{escape(note)}" for note in self._notes())
        return f"<p>{escape(self._headline())}{notes}</p><table>{table}</table>"

    def to_json(self) -> dict[str, Json]:
        """What a later process needs to tell the same."""
        return {
            "splits": {
                name: {key: getattr(split, key) for key in EtlSplit.__slots__}
                for name, split in self.splits.items()
            },
            "reasons": dict(self.reasons),
            "quarantine": self.quarantine,
        }

    @classmethod
    def from_json(cls, path: str, value: Mapping[str, Any]) -> EtlReport:
        """What an earlier process has done."""
        splits = {name: EtlSplit(**split) for name, split in value["splits"].items()}
        return cls(
            path=path,
            splits=splits,
            seconds=0.0,
            prepared=0,
            reasons=value["reasons"],
            quarantine=value["quarantine"],
        )

    def _headline(self) -> str:
        if not self.prepared:
            return f"{self.path} was prepared before from the same data by the same code"
        speed = f" ({self.prepared / self.seconds:,.0f} rows/s)" if self.seconds > 0 else ""
        return f"prepared {self.prepared} rows in {self.seconds:.1f} s{speed} into {self.path}"

    def _cells(self) -> list[list[str]]:
        head = ["split", "rows in", "rows", "bad", "left out", "shards"]
        return [head] + [
            [name, *map(str, (s.rows_in, s.rows, s.bad, s.left_out, s.shards))]
            for name, s in self.splits.items()
        ]

    def _table(self) -> list[str]:
        return [
            f"{cells[0]:<8}" + "".join(f"{c:>{w}}" for c, w in zip(cells[1:], _WIDTHS, strict=True))
            for cells in self._cells()
        ]

    def _notes(self) -> list[str]:
        notes = [f"{count} bad: {reason}" for reason, count in list(self.reasons.items())[:5]]
        return notes + ([f"bad rows are in {self.quarantine}"] if self.quarantine else [])
