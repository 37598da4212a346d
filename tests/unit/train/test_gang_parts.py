"""Rows are shared out completely, evenly, and in order."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from cerebro.train.gang.parts import Shares, part_of

ROWS, SIZES = st.integers(0, 300), st.integers(1, 9)


@given(ROWS, SIZES)
def test_parts_are_neighbours_that_cover_all_rows(rows, size):
    parts = [part_of(rows, rank, size) for rank in range(size)]
    assert_covered(parts, rows)
    counts = [last - first for first, last in parts]
    assert max(counts) - min(counts) <= 1


@given(st.integers(1, 60), st.integers(1, 60), SIZES)
def test_batches_are_shared_out_without_a_row_alone(batch_size, rows, size):
    rows = min(rows, batch_size)
    shares = Shares(batch_size, size)
    assert_covered([shares.part(rows, rank) for rank in range(size)], rows)
    if batch_size >= 2 * size and rows > 1:
        assert all(shares.count(rows, rank) != 1 for rank in range(size))


def assert_covered(parts, rows):
    assert [first for first, _ in parts] == [0, *(last for _, last in parts[:-1])]
    assert parts[-1][1] == rows
