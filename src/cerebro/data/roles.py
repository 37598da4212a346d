"""Names of columns that mean something: row ids, a single input, labels."""

from __future__ import annotations

#: The column with row ids.
ID = "id"
#: An input that has no name of its own.
INPUT = "x"
#: A label that has no name of its own, and what the names of several begin with.
LABEL, LABELS = "y", "y."


def is_label(column: str) -> bool:
    """Whether a column of a prepared dataset is a label, which a predict split lacks.

    >>> is_label("y"), is_label("y.age"), is_label("x")
    (True, True, False)
    """
    return column == LABEL or column.startswith(LABELS)
