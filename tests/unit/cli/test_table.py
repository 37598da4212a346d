from __future__ import annotations

import pytest

from cerebro.cli.table import format_bytes, format_columns


def test_columns_are_as_wide_as_their_widest_cell_and_lines_end_without_blanks():
    text = format_columns([("a", "long value", ""), ("longer", "b", "c")], indent="  ")
    assert text.splitlines() == ["  a       long value", "  longer  b           c"]


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (999_949, "999.9 kB"),
        (999_951, "1.0 MB"),
        (5e12, "5.0 TB"),
        (5e18, "5000000.0 TB"),
    ],
)
def test_sizes_have_units_of_1000(count, text):
    assert format_bytes(count) == text
