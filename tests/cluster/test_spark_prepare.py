"""prepare_data: from a DataFrame to shards, every row once."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pytest
from pyspark.ml.linalg import Vectors, VectorUDT
from pyspark.sql import functions as F
from pyspark.sql import types as T

from cerebro.backend import SparkBackend
from cerebro.data import SparseRows, TextColumn, open_dataset
from cerebro.errors import DataError, StoreError, UsageError
from cerebro.storage import LocalStore
from tests.cluster.sparks import session

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with session("local[2]") as found:
        yield found


@pytest.fixture(scope="module")
def backend(spark):
    return SparkBackend(spark)


def numbered(spark, rows, partitions):
    """Rows that can be told apart."""
    return spark.range(rows, numPartitions=partitions).select(
        F.col("id"), (F.col("id") * 0.5).alias("x"), (F.col("id") % 4 == 0).alias("held")
    )


def column(dataset, split, name):
    shards = [dataset.open_shard(split, n) for n in range(len(dataset.shards(split)))]
    return np.concatenate([np.asarray(shard.columns[name]) for shard in shards])


def ids(dataset, *splits):
    return sorted(np.concatenate([column(dataset, split, "id") for split in splits]).tolist())


@pytest.mark.parametrize(
    ("rows", "partitions", "shards", "validation"),
    [
        (1, 1, 1, None),
        (7, 3, 2, None),
        (7, 3, 2, 0.25),
        (100, 1, 8, 0.25),
        (101, 8, 3, None),
        (1000, 5, 4, 0.25),
        (5, 20, 5, None),
        (5, 20, 4, 0.25),
    ],
)
def test_every_row_is_there_once(spark, backend, tmp_path, rows, partitions, shards, validation):
    frame = numbered(spark, rows, partitions)
    found = backend.prepare_data(tmp_path, frame, validation, num_partitions=shards)
    dataset = open_dataset(tmp_path)
    assert ids(dataset, *dataset.splits) == list(range(rows))
    held_out = round(rows * (validation or 0))
    assert (found.train_rows, found.val_rows) == (rows - held_out, held_out)
    sizes = [info.rows for info in dataset.shards("train")]
    assert len(sizes) == shards
    assert max(sizes) - min(sizes) <= 1
    dataset.verify()


def test_rows_keep_their_values(spark, backend, tmp_path):
    backend.prepare_data(tmp_path, numbered(spark, 500, 4), 0.1, num_partitions=3)
    dataset = open_dataset(tmp_path)
    for split in dataset.splits:
        np.testing.assert_array_equal(column(dataset, split, "x"), column(dataset, split, "id") / 2)


def test_shards_are_exchangeable(spark, backend, tmp_path):
    """Rows that were sorted are spread evenly over all shards."""
    backend.prepare_data(tmp_path, numbered(spark, 4000, 4), num_partitions=4)
    dataset = open_dataset(tmp_path)
    for number in range(4):
        values = dataset.open_shard("train", number).columns["id"]
        assert abs(np.mean(values) - 2000) < 150
        assert np.abs(np.diff(values)).mean() > 500


def test_the_same_seed_gives_the_same_bytes(spark, backend, tmp_path):
    digests = []
    for name, seed in (("a", 7), ("b", 7), ("c", 8)):
        backend.prepare_data(tmp_path / name, numbered(spark, 300, 3), 0.2, 2, seed=seed)
        digests.append(open_dataset(tmp_path / name).digest)
    assert digests[0] == digests[1] != digests[2]


# Validation


def test_a_column_can_say_which_rows_are_for_validation(spark, backend, tmp_path):
    found = backend.prepare_data(tmp_path, numbered(spark, 100, 3), "held", num_partitions=2)
    dataset = open_dataset(tmp_path)
    assert (found.train_rows, found.val_rows) == (75, 25)
    assert ids(dataset, "val") == list(range(0, 100, 4))
    assert "held" not in dataset.schema


def test_numbers_above_zero_are_for_validation_too(spark, backend, tmp_path):
    frame = numbered(spark, 20, 2).withColumn("held", F.col("held").cast("double") - 0.5)
    assert backend.prepare_data(tmp_path, frame, "held", num_partitions=2).val_rows == 5


@pytest.mark.parametrize("validation", [None, 0, 0.0], ids=["none", "zero", "fraction"])
def test_validation_data_of_an_earlier_call_is_gone(spark, backend, tmp_path, validation):
    backend.prepare_data(tmp_path, numbered(spark, 100, 2), 0.3, num_partitions=2)
    found = backend.prepare_data(tmp_path, numbered(spark, 100, 2), validation, num_partitions=2)
    dataset = open_dataset(tmp_path)
    assert found.val_rows == 0
    assert [str(split) for split in dataset.splits] == ["train"]
    assert not list(tmp_path.glob("val-*"))
    assert not (tmp_path / "staging").exists()


@pytest.mark.parametrize(
    ("validation", "message"),
    [
        (1, "must be a fraction"),
        (True, "must be a fraction"),
        (1.0, "`0 <= validation < 1` must hold"),
        (-0.5, "`0 <= validation < 1` must hold"),
        ("nothing", "must name a column"),
        ([0.5], "must be a fraction"),
    ],
    ids=["one", "true", "whole", "negative", "unknown", "list"],
)
def test_other_validations_are_refused(spark, backend, tmp_path, validation, message):
    with pytest.raises(UsageError, match=message):
        backend.prepare_data(tmp_path, numbered(spark, 10, 1), validation)
    assert not list(tmp_path.iterdir())


def test_a_validation_column_that_marks_nothing_is_named(spark, backend, tmp_path):
    frame = numbered(spark, 10, 2).withColumn("held", F.lit(False))
    with pytest.raises(DataError, match="'held' of 10 rows leaves no row for validation"):
        backend.prepare_data(tmp_path, frame, "held", num_partitions=2)


# Columns


def test_columns_of_all_kinds(spark, backend, tmp_path):
    schema = T.StructType(
        [
            T.StructField("flag", T.BooleanType()),
            T.StructField("byte", T.ByteType()),
            T.StructField("whole", T.IntegerType()),
            T.StructField("single", T.FloatType()),
            T.StructField("price", T.DecimalType(8, 2)),
            T.StructField("name", T.StringType()),
            T.StructField("blob", T.BinaryType()),
            T.StructField("series", T.ArrayType(T.FloatType())),
            T.StructField("grid", T.ArrayType(T.ArrayType(T.LongType()))),
            T.StructField("dense", VectorUDT()),
            T.StructField("sparse", VectorUDT()),
        ]
    )
    rows = [
        (
            n % 2 == 0,
            n,
            n * 1000,
            n / 4,
            decimal.Decimal(n) / 4,
            f"row {n} é",
            bytes([n] * n),
            [float(n)] * 3,
            [[n, n + 1], [n + 2, n + 3]],
            Vectors.dense([n, 1.0]),
            Vectors.sparse(6, [n % 6], [float(n)]),
        )
        for n in range(20)
    ]
    found = backend.prepare_data(
        tmp_path, spark.createDataFrame(rows, schema).repartition(3), num_partitions=2
    )
    dataset = open_dataset(tmp_path)
    kinds = {name: str(column) for name, column in dataset.schema.items()}
    assert kinds == {
        "flag": "bool",
        "byte": "int8",
        "whole": "int32",
        "single": "float32",
        "price": "float64",
        "name": "text",
        "blob": "bytes",
        "series": "float32[3]",
        "grid": "int64[2, 2]",
        "dense": "float64[2]",
        "sparse": "float64[6]",
    }
    assert found.metadata["dense"]["spark_data_type"] == "vector"
    assert found.metadata["sparse"]["intermediate_format"] == "array"
    assert found.metadata["name"]["spark_data_type"] == "string"
    seen = 0
    for number in range(2):
        columns = dataset.open_shard("train", number).columns
        for row in range(len(columns["byte"])):
            n = int(columns["byte"][row])
            assert columns["flag"][row] == (n % 2 == 0)
            assert (columns["whole"][row], columns["single"][row]) == (n * 1000, n / 4)
            assert (columns["price"][row], columns["name"][row]) == (n / 4, f"row {n} é")
            assert columns["blob"][row] == bytes([n] * n)
            assert columns["series"][row].tolist() == [n] * 3
            assert columns["grid"][row].tolist() == [[n, n + 1], [n + 2, n + 3]]
            assert columns["dense"][row].tolist() == [n, 1.0]
            assert columns["sparse"][row].tolist() == [n * (k == n % 6) for k in range(6)]
            seen += 1
    assert seen == 20


def sparse_rows(spark, count, mixed=False):
    rows = [
        (n, Vectors.dense([0.0] * 1000) if mixed and n == 3 else Vectors.sparse(1000, [n], [1.0]))
        for n in range(count)
    ]
    return spark.createDataFrame(rows, ["id", "v"]).repartition(4)


def test_sparse_vectors_stay_small_where_asked_for(spark, backend, tmp_path):
    dense = backend.prepare_data(tmp_path / "a", sparse_rows(spark, 40), num_partitions=2)
    small = backend.prepare_data(
        tmp_path / "b", sparse_rows(spark, 40), num_partitions=2, compress_sparse=True
    )
    assert small.avg_row_size < dense.avg_row_size / 4
    assert small.metadata["v"]["intermediate_format"] == "custom_sparse_format"
    assert small.metadata["v"]["is_sparse_vector_only"] is True
    assert small.metadata["v"]["max_size"] == 1
    columns = open_dataset(tmp_path / "b").open_shard("train", 0).columns
    assert isinstance(columns["v"], SparseRows)
    np.testing.assert_array_equal(columns["v"].dense().argmax(1), columns["id"])


def test_a_dense_vector_among_sparse_ones_makes_the_column_dense(spark, backend, tmp_path):
    found = backend.prepare_data(
        tmp_path, sparse_rows(spark, 40, mixed=True), num_partitions=2, compress_sparse=True
    )
    assert found.metadata["v"]["is_sparse_vector_only"] is False
    dataset = open_dataset(tmp_path)
    assert str(dataset.schema["v"]) == "float64[1000]"
    assert column(dataset, "train", "v").sum() == 39


def test_features_and_labels_are_stored_and_nothing_else(spark, backend, tmp_path):
    frame = numbered(spark, 20, 2)
    backend.prepare_data(tmp_path / "a", frame, feature_columns=["x"], label_columns=["id"])
    assert list(open_dataset(tmp_path / "a").schema) == ["id", "x"]
    backend.prepare_data(tmp_path / "b", frame, feature_column="x", label_column="id")
    assert list(open_dataset(tmp_path / "b").schema) == ["id", "x"]


def test_columns_with_strange_names_can_be_stored(spark, backend, tmp_path):
    frame = spark.range(4).select(F.col("id").alias("a.b `c`"))
    backend.prepare_data(tmp_path, frame, num_partitions=2)
    assert list(open_dataset(tmp_path).schema) == ["a.b `c`"]


def test_wrong_columns_are_named(spark, backend, tmp_path):
    frame = numbered(spark, 4, 1)
    with pytest.raises(UsageError, match="there is no column 'y'"):
        backend.prepare_data(tmp_path, frame, feature_columns=["y"])
    with pytest.raises(UsageError, match="either feature_column or feature_columns"):
        backend.prepare_data(tmp_path, frame, feature_column="x", feature_columns=["x"])
    with pytest.raises(UsageError, match="'held' is not stored"):
        backend.prepare_data(tmp_path, frame, "held", feature_columns=["held"])
    with pytest.raises(UsageError, match="parquet_row_group_size_mb any more"):
        backend.prepare_data(tmp_path, frame, parquet_row_group_size_mb=8)


@pytest.mark.parametrize("seed", [-1, 1.5, "a"])
def test_a_seed_that_is_none_is_refused(spark, backend, tmp_path, seed):
    with pytest.raises(UsageError, match="`0 <= seed < 2"):
        backend.prepare_data(tmp_path / "data", numbered(spark, 4, 1), seed=seed)
    assert not (tmp_path / "data").exists()


def test_a_name_that_cannot_be_stored_is_told_before_anything_is_done(spark, backend, tmp_path):
    frame = spark.range(4).withColumnRenamed("id", " id ")
    with pytest.raises(DataError, match="name must be printable"):
        backend.prepare_data(tmp_path / "data", frame)
    assert not (tmp_path / "data").exists()


def test_a_type_that_cannot_be_stored_is_named_before_anything_is_done(spark, backend, tmp_path):
    frame = spark.createDataFrame([(datetime.date(2026, 1, 1),)], ["day"])
    with pytest.raises(DataError, match=r"column 'day' is date.*Cast it"):
        backend.prepare_data(tmp_path, frame)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ([1.0, None, 2.0], "column 'c'.*1 of"),
        ([[1.0], [1.0, 2.0]], "column 'c'.*same length"),
        ([Vectors.dense([1.0]), Vectors.dense([1.0, 2.0])], "column 'c'"),
    ],
    ids=["missing", "lists", "vectors"],
)
@pytest.mark.parametrize("partitions", [1, 3])
def test_rows_that_do_not_fit_are_named_and_what_was_there_stays(
    spark, backend, tmp_path, values, message, partitions
):
    backend.prepare_data(tmp_path, numbered(spark, 10, 1), num_partitions=1)
    before = open_dataset(tmp_path).digest
    frame = spark.createDataFrame([(value,) for value in values], ["c"]).repartition(partitions)
    with pytest.raises(DataError, match="column 'c'" if partitions > 1 else message):
        backend.prepare_data(tmp_path, frame, num_partitions=1)
    assert open_dataset(tmp_path).digest == before
    assert len(list(tmp_path.glob("*.arrow"))) == 1


def test_a_dataset_that_cannot_be_read_stays_when_another_cannot_be_written(
    spark, backend, tmp_path
):
    """Of a newer version, perhaps: its shards are not known to be strays."""
    backend.prepare_data(tmp_path / "a", numbered(spark, 10, 1), num_partitions=1)
    (shard,) = (tmp_path / "a").glob("*.arrow")
    (tmp_path / "b" / shard.name).mkdir(parents=True)
    (tmp_path / "b" / "dataset.json").write_text('{"format": "another"}')
    other = tmp_path / "b" / shard.name.replace("train", "val")
    other.write_bytes(b"rows")
    with pytest.raises(StoreError):
        backend.prepare_data(tmp_path / "b", numbered(spark, 10, 1), num_partitions=1)
    assert other.read_bytes() == b"rows"


def test_a_file_is_no_place_for_a_dataset(spark, backend, tmp_path):
    (tmp_path / "file").write_text("text")
    with pytest.raises(UsageError, match=r"a dataset is a directory, but .*file is a file"):
        backend.prepare_data(tmp_path / "file", numbered(spark, 4, 1))


# How many


def test_more_shards_than_rows_are_refused_where_they_were_asked_for(spark, backend, tmp_path):
    with pytest.raises(DataError, match="there are 3 training rows for num_partitions=4"):
        backend.prepare_data(tmp_path, numbered(spark, 3, 2), num_partitions=4)
    backend.prepare_data(tmp_path, numbered(spark, 1, 2))
    assert len(open_dataset(tmp_path).shards("train")) == 1


def test_shards_are_the_same_for_any_number_of_workers(spark, tmp_path):
    found = []
    for workers in (1, 2, 5):
        path = tmp_path / str(workers)
        SparkBackend(spark, num_workers=workers).prepare_data(path, numbered(spark, 1100, 3), 0.1)
        found.append(open_dataset(path))
    assert {dataset.digest for dataset in found} == {found[0].digest}
    assert [info.rows for info in found[0].shards("train")] == [330, 330, 330]
    assert ids(found[0], "train", "val") == list(range(1100))


def test_a_frame_without_rows_is_refused(spark, backend, tmp_path):
    with pytest.raises(DataError, match="0 training rows"):
        backend.prepare_data(tmp_path, numbered(spark, 0, 2))


# Stores


def test_an_estimators_store_gets_it_at_its_train_path(spark, backend, tmp_path):
    store = LocalStore(tmp_path)
    backend.prepare_data(store, numbered(spark, 10, 2), 0.2)
    assert open_dataset(tmp_path / "train_data").rows("train") == 8


def test_texts_are_dealt_out_too(spark, backend, tmp_path):
    frame = spark.range(50).select(F.col("id").cast("string").alias("t"))
    backend.prepare_data(tmp_path, frame, num_partitions=3)
    dataset = open_dataset(tmp_path)
    texts = [dataset.open_shard("train", n).columns["t"] for n in range(3)]
    assert all(isinstance(each, TextColumn) for each in texts)
    assert sorted(int(t) for each in texts for t in each.arrow.to_pylist()) == list(range(50))
