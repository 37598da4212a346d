"""Preparing datasets from CSV and Parquet files."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest

from cerebro.data import from_csv, from_parquet
from cerebro.errors import DataError, UsageError

CSV = "id,height,width,name,good\n" + "".join(
    f'{n},{n}.5,{n * 2},"n, {n}",{str(n % 2 == 0).lower()}\n' for n in range(6)
)


@pytest.fixture
def source(tmp_path):
    file = tmp_path / "source.csv"
    file.write_text(CSV)
    return file


def write(tmp_path, text, name="source.csv"):
    file = tmp_path / name
    file.write_text(text)
    return file


def kinds(dataset):
    return {name: str(column) for name, column in dataset.schema.items()}


def columns_by_id(dataset):
    """The only shard's columns, in the order of the source."""
    columns = dataset.open_shard("train", 0).columns
    order = np.argsort(columns["id"])
    return {
        name: values[order] if isinstance(values, np.ndarray) else values.take(order)
        for name, values in columns.items()
    }


def test_csv_types_are_inferred(tmp_path, source):
    data = from_csv(tmp_path / "data", source, shards=1)
    assert kinds(data) == {
        "id": "int64",
        "height": "float64",
        "width": "int64",
        "name": "text",
        "good": "bool",
    }
    columns = columns_by_id(data)
    assert columns["name"] == [f"n, {n}" for n in range(6)]
    assert columns["good"].tolist() == [True, False] * 3


def test_csv_types_can_be_given(tmp_path, source):
    types = {"height": "float16", "width": "uint8", "good": "text", "name": "bytes"}
    data = from_csv(tmp_path / "data", source, shards=1, columns=types)
    assert kinds(data) == {"id": "int64", **types}


def test_features_are_stacked_as_float32(tmp_path, source):
    data = from_csv(tmp_path / "data", source, shards=1, features={"x": ["width", "height"]})
    assert kinds(data) == {"x": "float32[2]", "id": "int64", "name": "text", "good": "bool"}
    assert columns_by_id(data)["x"].tolist() == [[n * 2, n + 0.5] for n in range(6)]


def test_features_take_the_dtype_given_for_the_group(tmp_path, source):
    data = from_csv(
        tmp_path / "data", source, shards=1, features={"x": ["width"]}, columns={"x": "int32"}
    )
    assert kinds(data)["x"] == "int32[1]"


def test_features_that_turn_fractional_late_in_a_file_are_read(tmp_path):
    file = write(tmp_path, "id,a\n" + "1,1\n" * 400_000 + "2,0.5\n")
    data = from_csv(tmp_path / "data", file, shards=1, features={"x": ["a"]})
    assert data.open_shard("train", 0).columns["x"].min() == 0.5


def test_nan_is_a_number(tmp_path):
    file = write(tmp_path, "id,a\n0,nan\n1,-inf\n2,1\n")
    found = columns_by_id(from_csv(tmp_path / "data", file, shards=1))["a"]
    assert np.array_equal(found, [np.nan, -np.inf, 1], equal_nan=True)


def test_several_files_follow_each_other_and_splits_may_have_their_own(tmp_path, source):
    data = from_csv(tmp_path / "data", [source, source], val=source, shards=2)
    assert (data.rows("train"), data.rows("val")) == (12, 6)


def test_another_delimiter_can_be_given(tmp_path):
    file = write(tmp_path, "id;a\n0;1\n")
    data = from_csv(tmp_path / "data", file, shards=1, delimiter=";")
    assert kinds(data) == {"id": "int64", "a": "int64"}


@pytest.mark.parametrize(
    ("text", "arguments", "message"),
    [
        ("a,b\n1,2\n3\n", {}, r"source\.csv cannot be read: .*Row #3"),
        ("a\n1\nx\n", {"columns": {"a": "int64"}}, r"source\.csv.*Row #3.*'x'"),
        ("a\n1\n300\n", {"columns": {"a": "uint8"}}, r"source\.csv.*300"),
        ("a,b\n1,2\n3,\n", {}, r"source\.csv: column 'b' .* row 2 .* has none"),
        ("a,b\n1,NA\n", {"columns": {"b": "float32"}}, "column 'b'"),
        ("a,a\n1,2\n", {}, r"source\.csv: .*'a' twice"),
        ("a,\n1,2\n", {}, "its own name"),
        ("", {}, "source.csv cannot be read"),
        ("a\n", {}, r"source\.csv must have at least one row"),
        ("abc\n1\n", {"columns": {"abd": "int64"}}, "no column 'abd'.*Did you mean 'abc'"),
        ("a\n1\n", {"features": {"x": ["b"]}}, "no column 'b'"),
        ("a,x\n1,2\n", {"features": {"x": ["a"]}}, "already has a column 'x'"),
        ("a\nq\n", {"features": {"x": ["a"]}}, r"source\.csv.*'q'"),
        ("a\n2024-01-01\n", {}, "column 'a' is date32.*text"),
        ("a\n\xff\n", {}, r"source\.csv: column 'a' must be UTF-8.*bytes"),
    ],
)
def test_a_bad_csv_is_refused_by_file_and_place(tmp_path, text, arguments, message):
    (tmp_path / "source.csv").write_bytes(text.encode("latin-1"))
    with pytest.raises(DataError, match=message):
        from_csv(tmp_path / "data", tmp_path / "source.csv", shards=1, **arguments)
    assert not (tmp_path / "data").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"columns": {"a": "float23"}}, "unknown type 'float23'.*Did you mean 'float32'"),
        ({"features": {"x": "a"}}, "list of different column names"),
        ({"features": {"x": []}}, "list of different column names"),
        ({"features": {"x": ["a", "a"]}}, "list of different column names"),
        ({"delimiter": ";;"}, "one character"),
    ],
)
def test_a_bad_argument_is_refused(tmp_path, source, arguments, message):
    with pytest.raises(UsageError, match=message):
        from_csv(tmp_path / "data", source, shards=1, **arguments)


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(DataError, match=r"missing\.csv does not exist"):
        from_csv(tmp_path / "data", tmp_path / "missing.csv", shards=1)


def test_no_files_are_refused(tmp_path):
    with pytest.raises(UsageError, match="at least one file"):
        from_csv(tmp_path / "data", [], shards=1)


def test_files_that_differ_are_refused_by_name(tmp_path, source):
    other = write(tmp_path, CSV.replace("height", "depth"), "other.csv")
    with pytest.raises(DataError, match=r"other\.csv differ in: depth, height"):
        from_csv(tmp_path / "data", [source, other], shards=1)


def parquet(tmp_path, **columns):
    file = tmp_path / "source.parquet"
    pyarrow.parquet.write_table(pa.table(columns), file, row_group_size=2)
    return file


def test_parquet_lists_become_tensors(tmp_path):
    file = parquet(
        tmp_path,
        id=pa.array(range(3)),
        fixed=pa.array([[1, 2], [3, 4], [5, 6]], pa.list_(pa.int8(), 2)),
        lists=pa.array([[1.0], [2.0], [3.0]]),
        nested=pa.array([[[1], [2]]] * 3, pa.list_(pa.list_(pa.float32()))),
        text=pa.array(["a", "b", "a"]).dictionary_encode(),
        raw=pa.array([b"x", b"", b"y"]),
        flag=pa.array([True, False, True]),
    )
    data = from_parquet(tmp_path / "data", file, shards=1)
    assert kinds(data) == {
        "id": "int64",
        "fixed": "int8[2]",
        "lists": "float64[1]",
        "nested": "float32[2, 1]",
        "text": "text",
        "raw": "bytes",
        "flag": "bool",
    }
    columns = columns_by_id(data)
    assert columns["fixed"].tolist() == [[1, 2], [3, 4], [5, 6]]
    assert columns["text"] == ["a", "b", "a"]


def test_parquet_columns_are_converted_and_stacked(tmp_path):
    file = parquet(tmp_path, id=pa.array([0, 1]), a=pa.array([1, 2]), b=pa.array([0.5, 1.5]))
    data = from_parquet(
        tmp_path / "data", file, shards=1, features={"x": ["a", "b"]}, columns={"id": "int16"}
    )
    assert kinds(data) == {"x": "float32[2]", "id": "int16"}
    assert data.open_shard("train", 0).columns["x"].sum() == 5.0


def test_a_directory_of_parquet_files_is_one_source(tmp_path):
    folder = tmp_path / "parts"
    folder.mkdir()
    for part in range(3):
        pyarrow.parquet.write_table(pa.table({"id": [part]}), folder / f"{part}.parquet")
    assert from_parquet(tmp_path / "data", folder, shards=1).rows("train") == 3


@pytest.mark.parametrize(
    ("column", "arguments", "message"),
    [
        (pa.array([1, None]), {}, "row 2 .* has none"),
        (pa.array([[1], [1, 2]]), {}, "same length.* number 2 has 2"),
        (pa.array([[1], [None]]), {}, "inside its lists"),
        (pa.array([1, 2], pa.timestamp("s")), {}, "timestamp"),
        (pa.array([1.5, 2.0]), {"columns": {"a": "int64"}}, "not int64"),
        (pa.array([1, 300]), {"columns": {"a": "uint8"}}, "not uint8"),
        (pa.array(["x", "y"]), {"columns": {"a": "int64"}}, "must be int64, but is text"),
        (pa.array([1, 2]), {"columns": {"a": "text"}}, "must be text, but is int64"),
        (pa.array(["x", "y"]), {"features": {"f": ["a"]}}, "must hold numbers, but is string"),
    ],
)
def test_a_bad_parquet_column_is_refused_by_file_and_name(tmp_path, column, arguments, message):
    file = parquet(tmp_path, a=column)
    with pytest.raises(DataError, match=rf"source\.parquet: column 'a'.*{message}"):
        from_parquet(tmp_path / "data", file, shards=1, **arguments)
    assert not (tmp_path / "data").exists()


def test_a_file_that_is_not_parquet_is_refused(tmp_path, source):
    with pytest.raises(DataError, match=r"source\.csv cannot be read as Parquet"):
        from_parquet(tmp_path / "data", source, shards=1)


def test_quoted_line_breaks_are_read_in_files_of_any_size(tmp_path):
    rows = 60_000  # some 2 MB: the reader works in blocks of 1 MB
    file = write(
        tmp_path, "id,a\n" + "".join(f'{n},"line 1\nline 2 of {n}"\n' for n in range(rows))
    )
    columns = columns_by_id(from_csv(tmp_path / "data", file, shards=1))
    assert columns["a"][-1] == f"line 1\nline 2 of {rows - 1}"


def test_a_column_that_turns_into_text_late_in_a_file_is_text(tmp_path):
    file = write(tmp_path, "id,a\n" + "1,1\n" * 400_000 + "2,many\n")
    assert kinds(from_csv(tmp_path / "data", file, shards=1))["a"] == "text"


@pytest.mark.parametrize("argument", ["columns", "features"])
def test_columns_and_features_that_are_no_mapping_are_refused(tmp_path, source, argument):
    for read in (from_csv, from_parquet):
        with pytest.raises(UsageError, match=rf"{argument} must be a mapping.*\['x'\]"):
            read(tmp_path / "data", source, shards=1, **{argument: ["x"]})
