from __future__ import annotations

import pyarrow as pa
import pytest
from pyarrow import parquet

from cerebro.data.parquet_table import read_parquet
from cerebro.errors import DataError


def test_the_files_of_a_directory_are_one_table(tmp_path):
    for number in range(2):
        table = pa.table({"x": [float(number)], "unused": ["text"]})
        parquet.write_table(table, tmp_path / f"part-{number}.parquet")
    (tmp_path / "_SUCCESS").touch()
    assert sorted(read_parquet(tmp_path, ["x"])["x"].to_pylist()) == [0.0, 1.0]


def test_vectors_of_spark_are_refused_with_what_to_do(tmp_path):
    vector = {"type": 1, "size": None, "indices": None, "values": [1.0]}
    kind = pa.struct(
        [
            ("type", pa.int8()),
            ("size", pa.int32()),
            ("indices", pa.list_(pa.int32())),
            ("values", pa.list_(pa.float64())),
        ]
    )
    parquet.write_table(pa.table({"features": pa.array([vector], kind)}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"'features' holds vectors of Spark ML.*vector_to_array"):
        read_parquet(tmp_path, ["features"])


def test_a_column_that_is_not_there_is_named(tmp_path):
    parquet.write_table(pa.table({"x": [1]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match=r"no column 'label'. It has: x"):
        read_parquet(tmp_path, ["label"])


def test_nothing_there(tmp_path):
    with pytest.raises(DataError, match=r"must be Parquet files at .*none"):
        read_parquet(tmp_path / "none", ["x"])


def test_no_parquet_files(tmp_path):
    (tmp_path / "a.parquet").write_bytes(b"text")
    with pytest.raises(DataError, match=r"cannot be read as Parquet"):
        read_parquet(tmp_path, ["x"])
