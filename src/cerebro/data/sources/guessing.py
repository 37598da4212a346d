"""Where Arrow's guess of a column's type would hide that some of its values are wrong."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cerebro.data.columns import Array, as_index, as_numpy, as_text
from cerebro.data.sources.cells import MISSING

#: A column is one of numbers if at least so many of its values are.
NUMBERS_SHARE = 0.99

_WHOLE = r"^[ \t]*-?\d+[ \t]*$"
_NUMBER = (
    r"^[ \t]*[+-]?(?:(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?"
    r"|[nN][aA][nN]|[iI][nN][fF](?:inity)?)[ \t]*$"
)
_SAMPLE = 1000
_SAMPLE_SHARE = 0.9
_INT64_END = 2.0**63


def mend_guess(column: pa.ChunkedArray) -> pa.DataType | None:
    """The type of numbers a column of text holds, but for a few values; None for real text.

    >>> mend_guess(pa.chunked_array([["1", "2", "x"] + ["3"] * 500]))
    DataType(int64)
    >>> mend_guess(pa.chunked_array([["1", "2", "x"]])) is None
    True
    """
    if not pa.types.is_string(column.type) or not len(column):
        return None
    step = max(1, len(column) // _SAMPLE)
    sample = column.take(as_index(np.arange(0, len(column), step)))
    if _share(sample) < _SAMPLE_SHARE or _share(column) < NUMBERS_SHARE:
        return None
    values = _values(column)
    numbers = values.filter(pc.match_substring_regex(values, _NUMBER))
    whole = pc.all(pc.match_substring_regex(numbers, _WHOLE)).as_py()
    return pa.int64() if whole else pa.float64()


def is_rounded(column: pa.ChunkedArray) -> bool:
    """Whether whole numbers, some of them too large for int64, were read as floats."""
    if not pa.types.is_float64(column.type) or not len(column):
        return False
    return _are_whole(column.slice(0, _SAMPLE)) and _are_whole(column) and _are_large(column)


def _are_whole(column: pa.ChunkedArray) -> bool:
    values = _finite(column)
    return bool((values == np.floor(values)).all())


def _are_large(column: pa.ChunkedArray) -> bool:
    values = _finite(column)
    return bool(len(values) and np.abs(values).max() >= _INT64_END)


def _finite(column: pa.ChunkedArray) -> Array:
    values = as_numpy(column.drop_null())
    return values[np.isfinite(values)]


def _values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    return column.filter(pc.invert(pc.is_in(column, value_set=as_text(MISSING).cast(column.type))))


def _share(column: pa.ChunkedArray) -> float:
    values = _values(column.drop_null())
    if not len(values):
        return 0.0
    return float(pc.mean(pc.match_substring_regex(values, _NUMBER).cast(pa.int8())).as_py())
