"""The cells of text files: which hold no value, and which types they can be read as."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping

import numpy as np
import pyarrow as pa

from cerebro.data.schema import DTYPES
from cerebro.errors import UsageError

#: Cells of a CSV file that hold no value. "nan" is a number and stays one.
MISSING = ["", "#N/A", "N/A", "NA", "NULL", "n/a", "null"]

#: Names of types a column may be given.
TYPES = (*DTYPES, "text", "bytes")


def arrow_type(dtype: str) -> pa.DataType:
    """The type Arrow reads cells as that become `dtype`.

    >>> arrow_type("uint8"), arrow_type("text")
    (DataType(uint8), DataType(large_string))
    """
    if dtype in ("text", "bytes"):
        return pa.large_string() if dtype == "text" else pa.large_binary()
    if dtype == "float16":
        return pa.float32()  # the reader has no half precision; narrowed afterwards
    return pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))


def check_types(columns: Mapping[str, str] | None) -> Mapping[str, str]:
    """The types given for columns, or `UsageError`.

    >>> check_types({"age": "int8"})
    {'age': 'int8'}
    """
    if columns is not None and not isinstance(columns, Mapping):
        raise UsageError(
            f'columns must be a mapping such as {{"name": "float32"}}, but got {columns!r}.'
        )
    for name, dtype in (columns or {}).items():
        if dtype not in TYPES:
            raise UsageError(
                f"unknown type {dtype!r} for column {name!r}. Known: {', '.join(TYPES)}."
                + suggest(str(dtype), TYPES)
            )
    return columns or {}


def suggest(name: str, known: Iterable[str]) -> str:
    """A sentence that names the known word which is closest, if one is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f" Did you mean {close[0]!r}?" if close else ""
