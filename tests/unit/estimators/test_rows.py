from __future__ import annotations

from collections import namedtuple

import numpy as np
import pytest

from cerebro.errors import UsageError
from cerebro.estimators.rows import Transformation


def batch():
    return {"x": np.array([1.0, 2.0, 3.0]), "name": ["a", "b", "c"]}


def test_a_function_of_batches_gets_arrays_by_name():
    found = Transformation(lambda rows: {**rows, "x": rows["x"] * 2})(batch())
    assert found["x"].tolist() == [2, 4, 6]
    assert found["name"] == ["a", "b", "c"]


def test_a_function_of_datasets_may_shuffle_and_map():
    def transform(dataset):
        return dataset.shuffle(1000).map(lambda row: {"x": row.x + 1}).prefetch(2)

    assert Transformation(transform)(batch())["x"].tolist() == [2, 3, 4]


def test_map_may_give_a_named_tuple():
    Row = namedtuple("Row", ["x"])
    found = Transformation(lambda dataset: dataset.map(lambda row: Row(row["x"])))(batch())
    assert list(found) == ["x"]


def test_filter_leaves_rows_out_of_every_column():
    found = Transformation(lambda dataset: dataset.filter(lambda row: row.x > 1))(batch())
    assert found["x"].tolist() == [2, 3]
    assert found["name"] == ["b", "c"]


def test_what_concerns_rows_beyond_a_batch_is_refused_with_what_to_do():
    with pytest.raises(UsageError, match=r"must not call batch\(\): the estimator's batch_size"):
        Transformation(lambda dataset: dataset.batch(32))(batch())


def test_a_column_that_is_not_there_is_named():
    with pytest.raises(AttributeError, match=r"no column 'y'. It has: x, name"):
        Transformation(lambda dataset: dataset.map(lambda row: {"y": row.y}))(batch())


def test_a_function_that_gives_no_columns_is_refused():
    with pytest.raises(UsageError, match=r"must return columns by name.*returned a list"):
        Transformation(lambda rows: [1])(batch())


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match=r"must be a function"):
        Transformation("x")
