"""Rows that cannot be used: told by file, line and reason, counted, and never lost silently."""

from __future__ import annotations

import enum
import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cerebro.errors import DataError, UsageError
from cerebro.storage.store import Store

#: Of each 1000 rows, one may be bad unless the user says otherwise.
DEFAULT_MAX_BAD = 0.001

QUARANTINE_FILE = "bad_rows.jsonl"
_SHOWN_ROWS = 5
_LONG_CHARACTERS, _SHOWN_CHARACTERS = 80, 60


class Policy(enum.StrEnum):
    """What to do with a row that cannot be used."""

    #: Raise an error that names it.
    FAIL = "fail"
    #: Leave it out and count it.
    SKIP = "skip"
    #: Leave it out, count it, and write it to a file of its own.
    QUARANTINE = "quarantine"

    @classmethod
    def parse(cls, value: str) -> Policy:
        """The policy of this name, or `UsageError`."""
        if value not in tuple(cls):
            raise UsageError(f"on_bad_row must be one of {', '.join(cls)}, but got {value!r}.")
        return cls(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class BadRow:
    """One row that cannot be used: where it is, and why.

    >>> row = BadRow(file="train.csv", line=17, column="age", value="x", reason="must be int64")
    >>> str(row)
    "train.csv:17: column 'age' must be int64, but got 'x'."
    """

    file: str
    #: Line at which the row begins, the first of the file being 1; the row's number where a file
    #: has no lines (Parquet, DataFrames); None if it is not known.
    line: int | None
    #: What is wrong, without a full stop: it follows "column 'name'" where there is a column.
    reason: str
    column: str | None = None
    #: The value that is wrong, shortened.
    value: str | None = None
    #: The row as it was read.
    text: str | None = None

    def __post_init__(self) -> None:
        if self.value is not None:
            object.__setattr__(self, "value", shorten(self.value))

    def __str__(self) -> str:
        place = self.file if self.line is None else f"{self.file}:{self.line}"
        column = "" if self.column is None else f"column {self.column!r} "
        value = "" if self.value is None else f", but got {self.value!r}"
        return f"{place}: {column}{self.reason}{value}."

    def to_json(self) -> str:
        """One line of the quarantine file."""
        fields = ("file", "line", "column", "value", "reason", "text")
        return json.dumps({name: getattr(self, name) for name in fields}, ensure_ascii=False)


@dataclass(slots=True)
class BadRows:
    """The bad rows of one table, and what is to be done with them.

    Plain data: workers fill their own and send them back, the driver merges them with `extend` and
    then calls `check` with the number of all rows, good and bad.

    >>> bad = BadRows(policy="skip", max_bad=2)
    >>> bad.add(BadRow(file="train.csv", line=17, reason="has 2 columns instead of 3"))
    >>> bad.check(total=1000)
    >>> print(bad.summary(total=1000))
    1 of 1000 rows is bad:
      train.csv:17: has 2 columns instead of 3.
    """

    policy: str = Policy.FAIL
    #: A fraction of all rows, or a number of rows if it is an int.
    max_bad: float = DEFAULT_MAX_BAD
    rows: list[BadRow] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.policy = Policy.parse(self.policy)
        limit = self.max_bad
        is_number = isinstance(limit, int | float) and not isinstance(limit, bool)
        if not is_number or not limit >= 0 or (isinstance(limit, float) and limit > 1):
            raise UsageError(
                "max_bad must be a fraction from 0.0 to 1.0 or a number of rows >= 0, "
                f"but got max_bad={limit!r}."
            )

    def __len__(self) -> int:
        return len(self.rows)

    def __iter__(self) -> Iterator[BadRow]:
        return iter(self.rows)

    def add(self, row: BadRow) -> None:
        """Keep a bad row; raise `DataError` if the policy is to fail."""
        if self.policy == Policy.FAIL:
            raise DataError(f"{row} {_REMEDY}")
        self.rows.append(row)

    def extend(self, rows: Iterable[BadRow]) -> None:
        """Keep several, such as those of a worker."""
        for row in rows:
            self.add(row)

    def allowed(self, total: int) -> int:
        """How many of so many rows may be bad.

        >>> BadRows(max_bad=0.01).allowed(250), BadRows(max_bad=7).allowed(250)
        (2, 7)
        """
        return self.max_bad if isinstance(self.max_bad, int) else int(self.max_bad * total)

    def check(self, total: int, *, are_all: bool = True) -> None:
        """Raise `DataError` if more of the `total` rows, good and bad, are bad than may be.

        With `are_all=False` the error says that there may be more of them.
        """
        if len(self.rows) > self.allowed(total):
            least = "" if are_all else "at least "
            raise DataError(
                f"{least}{self.summary(total)}\nAt most {self.allowed(total)} may be "
                f"(max_bad={self.max_bad}). Correct the data, or raise max_bad."
            )

    def counts(self) -> dict[str, int]:
        """How many rows each reason made bad, the most frequent first.

        >>> bad = BadRows(policy="skip")
        >>> for line in (2, 5):
        ...     bad.add(BadRow(file="a.csv", line=line, column="x", reason="must be int64"))
        >>> bad.counts()
        {"column 'x' must be int64": 2}
        """
        said = Counter(
            row.reason if row.column is None else f"column {row.column!r} {row.reason}"
            for row in self.rows
        )
        return dict(said.most_common())

    def summary(self, total: int) -> str:
        """What was bad, in a few lines: the first rows, and how many more there are."""
        number = len(self.rows)
        if not number:
            return f"none of {total} rows is bad."
        lines = [f"{number} of {total} rows {'is' if number == 1 else 'are'} bad:"]
        lines += [f"  {row}" for row in self.rows[:_SHOWN_ROWS]]
        if number > _SHOWN_ROWS:
            lines.append(f"  and {number - _SHOWN_ROWS} more.")
        return "\n".join(lines)

    def write(self, store: Store, path: str = QUARANTINE_FILE) -> None:
        """Write the rows as JSON lines, all or none of them; nothing unless in quarantine.

        Bytes that are no UTF-8 stand as ``\\xff`` in the text.
        """
        if self.policy == Policy.QUARANTINE and self.rows:
            store.write(path, "".join(f"{row.to_json()}\n" for row in self.rows).encode())


_REMEDY = 'Correct it, or leave such rows out with on_bad_row="skip" or "quarantine".'


def shorten(value: str) -> str:
    """A value as an error may show it.

    >>> shorten("x" * 10_000_000)[-20:]
    'xxxxxxxx… (10000000)'
    """
    if len(value) <= _LONG_CHARACTERS:
        return value
    return f"{value[:_SHOWN_CHARACTERS]}… ({len(value)})"
