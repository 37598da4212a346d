"""Columns as Arrow bytes and back."""

from __future__ import annotations

import os
import subprocess
import sys

import numpy as np
import pyarrow as pa
import pytest

from cerebro.data import from_arrays
from cerebro.data.arrow import ALIGNMENT, decode, encode
from cerebro.data.columns import BytesColumn, SparseRows, TextColumn
from cerebro.data.inputs import as_table
from cerebro.data.schema import DTYPES, Column, Kind
from cerebro.errors import DataError


def round_trip(columns, *, check=True):
    table = as_table(columns, split="train")
    data = b"".join(encode(table.columns, table.schema))
    return decode(pa.py_buffer(data), table.schema, check=check)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 4)])
def test_a_tensor_column_comes_back_with_its_dtype_and_shape(dtype, shape):
    values = (np.arange(5 * int(np.prod(shape))).reshape(5, *shape) % 2).astype(dtype)
    found = round_trip({"x": values})["x"]
    assert found.dtype == values.dtype
    assert np.array_equal(found, values)


def test_non_finite_values_come_back_bit_for_bit():
    values = np.array([np.nan, np.inf, -np.inf, -0.0, 1e-310])
    assert round_trip({"x": values})["x"].tobytes() == values.tobytes()


def test_big_endian_and_strided_arrays_come_back_in_native_order():
    values = np.arange(12, dtype=">i4").reshape(3, 4)[:, ::2]
    found = round_trip({"x": values})["x"]
    assert found.dtype == np.dtype("int32")
    assert found.tolist() == [[0, 2], [4, 6], [8, 10]]


def test_text_and_bytes_of_any_content_come_back():
    text, raw = ["", "día", "\0 🙂 \n"], [b"", b"\xff\x00", b"x"]
    found = round_trip({"t": text, "b": raw})
    assert isinstance(found["t"], TextColumn)
    assert isinstance(found["b"], BytesColumn)
    assert [found["t"][row] for row in range(3)] == text
    assert found["b"].take(np.array([2, 1, 0])) == raw[::-1]


def test_sparse_rows_come_back():
    rows = SparseRows(np.array([0, 2, 2, 3]), np.array([0, 4, 1]), np.float32([1, 2, 3]), 5)
    found = round_trip({"s": rows})["s"]
    assert found.shape == (3, 5)
    assert found.data.dtype == np.float32
    assert np.array_equal(found.dense(), [[1, 0, 0, 0, 2], [0] * 5, [0, 3, 0, 0, 0]])


@pytest.mark.parametrize("name", ["x", "a much longer name", "y" * 77])
def test_the_widest_array_starts_at_a_multiple_of_64_bytes_of_the_file(name):
    columns = {"first": np.full(3, 5, np.uint8), name: np.full((3, 9), 7, np.uint8)}
    data = b"".join(encode(columns, as_table(columns, split="train").schema))
    assert data.index(columns[name].tobytes()) % ALIGNMENT == 0


def test_columns_keep_the_order_they_were_given_in():
    columns = {"narrow": np.zeros(3), "text": list("abc"), "wide": np.zeros((3, 9))}
    assert list(round_trip(columns)) == list(columns)


def test_arrays_are_views_of_the_file():
    table = as_table({"x": np.arange(1000.0), "t": ["a"] * 1000}, split="train")
    buffer = pa.py_buffer(b"".join(encode(table.columns, table.schema)))
    address = decode(buffer, table.schema, check=True)["x"].ctypes.data
    assert buffer.address <= address < buffer.address + buffer.size


def test_encoding_does_not_copy_the_arrays():
    values = np.arange(1000.0)
    parts = encode({"x": values}, as_table({"x": values}, split="train").schema)
    assert any(np.shares_memory(np.frombuffer(part, np.uint8), values) for part in parts)


def test_a_file_with_another_type_than_the_schema_says_is_refused():
    table = as_table({"x": np.arange(4)}, split="train")
    data = b"".join(encode(table.columns, table.schema))
    other = {"x": Column(kind=Kind.TENSOR, dtype="float64")}
    with pytest.raises(DataError, match="'x' is int64 instead of float64"):
        decode(pa.py_buffer(data), other, check=True)


def test_a_file_with_other_columns_is_refused():
    table = as_table({"x": np.arange(4)}, split="train")
    data = b"".join(encode(table.columns, table.schema))
    with pytest.raises(DataError, match="instead of"):
        decode(pa.py_buffer(data), {"y": table.schema["x"]}, check=True)


def test_a_sparse_index_outside_the_width_is_refused():
    table = as_table({"s": SparseRows(np.array([0, 1]), np.array([4]), np.ones(1), 5)}, split="t")
    data = b"".join(encode(table.columns, table.schema))
    narrow = {"s": Column(kind=Kind.SPARSE, dtype="float64", shape=(4,))}
    with pytest.raises(DataError, match=r"outside 0\.\.3"):
        decode(pa.py_buffer(data), narrow, check=True)


@pytest.mark.parametrize("data", [b"", b"ARROW1", b"\0" * 5000, b"ARROW1\0\0" + b"\xff" * 500])
def test_bytes_that_are_no_arrow_file_are_refused(data):
    with pytest.raises(DataError, match="not a readable Arrow file"):
        decode(pa.py_buffer(data), {}, check=True)


def test_reading_loads_neither_pandas_nor_the_functions_of_arrow(tmp_path):
    (tmp_path / "pandas").mkdir()
    (tmp_path / "pandas/__init__.py").write_text("raise SystemExit('pandas was imported')")
    code = (
        "import sys, numpy as np; from cerebro.data import from_arrays, open_dataset; "
        "open_dataset(sys.argv[1]).open_shard('train', 0); print('pyarrow.compute' in sys.modules)"
    )
    columns = {"x": np.zeros((4, 3), np.float32), "y": np.arange(4), "t": list("abcd")}
    from_arrays(tmp_path / "data", columns, shards=1)
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "data")],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout == "False\n", done.stderr
