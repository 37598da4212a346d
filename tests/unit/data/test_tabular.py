from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from cerebro.data.tabular import (
    FrameCut,
    check_validation,
    columns_of,
    default_shards,
    from_frame,
    names_of,
    with_columns,
)
from cerebro.errors import DataError, UsageError

ROWS = 40


def arrays():
    return {
        "x": np.arange(2.0 * ROWS).reshape(ROWS, 2),
        "y": np.arange(ROWS),
        "held": np.arange(ROWS) % 4 == 0,
    }


FRAMES = {
    "arrays": arrays,
    "pandas": lambda: pd.DataFrame({k: list(v) for k, v in arrays().items()}),
    "arrow": lambda: pa.table({k: v.tolist() for k, v in arrays().items()}),
}


@pytest.fixture(params=FRAMES)
def frame(request):
    return FRAMES[request.param]()


def test_all_kinds_of_tables_give_the_same_dataset(frame, tmp_path):
    cut = FrameCut(columns=["x", "y"], validation=0.25, seed=3)
    found = from_frame(tmp_path / "found", frame, cut)
    assert found.digest == from_frame(tmp_path / "expected", arrays(), cut).digest
    assert (found.rows("train"), found.rows("val")) == (30, 10)


def test_a_column_may_say_which_rows_are_for_validation(frame, tmp_path):
    data = from_frame(tmp_path, frame, FrameCut(columns=["x", "y"], validation="held"))
    val = [data.open_shard("val", n).columns["y"] for n in range(len(data.shards("val")))]
    assert sorted(np.concatenate(val).tolist()) == list(range(0, ROWS, 4))
    assert list(data.schema) == ["x", "y"]


def test_validation_of_an_earlier_call_is_gone(tmp_path):
    from_frame(tmp_path, arrays(), FrameCut(columns=["x"], validation=0.5))
    data = from_frame(tmp_path, arrays(), FrameCut(columns=["x"], validation=None))
    assert data.shards("val") == ()
    assert data.rows("train") == ROWS


def test_validation_rows_may_come_as_a_table_of_their_own(tmp_path):
    data = from_frame(tmp_path, arrays(), FrameCut(columns=["y"], validation=0.5), val=arrays())
    assert data.rows("train") == data.rows("val") == ROWS


def test_no_column_of_this_name(frame):
    with pytest.raises(DataError, match=r"no column 'z'. It has: x, y, held"):
        columns_of(frame, ["z"])


def test_what_is_no_table_is_refused():
    with pytest.raises(UsageError, match=r"must be a pandas or polars DataFrame.*got a list"):
        names_of([1])


def test_columns_are_added_to_a_table_of_the_same_kind(frame):
    new = {"label": np.ones(ROWS), "vector": np.zeros((ROWS, 3))}
    found = with_columns(frame, new)
    assert type(found) is type(frame)
    assert names_of(found) == ["x", "y", "held", "label", "vector"]
    assert columns_of(found, ["vector"])["vector"].shape == (ROWS, 3)


def test_a_column_of_the_same_name_is_replaced(frame):
    found = with_columns(frame, {"y": np.full(ROWS, 7.0)})
    assert columns_of(found, ["y"])["y"].tolist() == [7.0] * ROWS


@pytest.mark.parametrize("validation", [1, 1.0, -0.1, True, [0.2]], ids=str)
def test_a_validation_that_is_no_fraction_is_refused(validation):
    with pytest.raises(UsageError, match=r"0 <= validation < 1"):
        check_validation(validation)


def test_a_validation_column_must_hold_numbers(tmp_path):
    frame = {**arrays(), "held": ["no"] * ROWS}
    with pytest.raises(DataError, match=r"'held' must hold booleans or numbers"):
        from_frame(tmp_path, frame, FrameCut(columns=["x"], validation="held"))


def test_few_rows_are_cut_into_few_shards():
    assert [default_shards(rows) for rows in (1, 2, 600, 5000)] == [1, 2, 2, 8]
