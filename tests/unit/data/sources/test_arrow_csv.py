"""Types that are taken from the first rows are those that Arrow finds in all of them."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.csv
import pytest

from cerebro.data.sources.arrow_csv import read_arrow
from cerebro.data.sources.cells import MISSING

#: Enough that the last one is not among the rows that types are taken from.
_ROWS = 60_000

COLUMNS = {
    "whole numbers": ("7", "8"),
    "a fraction at last": ("7", "8.5"),
    "a large number at last": ("7", str(2**70)),
    "text at last": ("7", "seven"),
    "none but the last": ("", "7"),
    "none at last": ("7", ""),
    "truths, and a number": ("true", "1"),
    "truths, and text": ("false", "maybe"),
    "days, and a time": ("2024-02-29", "2024-02-29 10:00:00"),
    "bytes at last": ("text", b"\xff".decode("latin-1")),
}


@pytest.mark.parametrize("name", COLUMNS)
def test_types_hold_for_all_rows(name: str) -> None:
    usual, last = COLUMNS[name]
    lines = [f"{number},{usual}" for number in range(_ROWS)] + [f"{_ROWS},{last}"]
    data = "\n".join(["id,value", *lines, ""]).encode("latin-1")
    found = read_arrow(lambda: pa.BufferReader(data), pyarrow.csv.ParseOptions(), {})
    expected = pyarrow.csv.read_csv(
        pa.BufferReader(data),
        convert_options=pyarrow.csv.ConvertOptions(null_values=MISSING),
    )
    assert found.equals(expected)


def test_types_that_are_given_hold() -> None:
    data = b"id,value\n1,2\n"
    parse, types = pyarrow.csv.ParseOptions(), {"value": pa.float32()}
    found = read_arrow(lambda: pa.BufferReader(data), parse, types)
    assert found["value"].type == pa.float32()


def test_what_does_not_fit_a_given_type_is_refused() -> None:
    data = b"id,value\n1,2\n2,x\n"
    with pytest.raises(pa.ArrowInvalid, match="x"):
        read_arrow(lambda: pa.BufferReader(data), pyarrow.csv.ParseOptions(), {"value": pa.int64()})
