"""Names of columns: Spark takes those for the same that differ in case alone."""

from __future__ import annotations

import numpy as np
import pytest
from pyspark.sql import functions as F

from cerebro.backend import SparkBackend
from cerebro.data import open_dataset
from cerebro.errors import UsageError
from cerebro.keras import KerasEstimator
from cerebro.tune import GridSearch
from tests.cluster.sparks import session

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def spark():
    with session("local[2]") as found:
        yield found


@pytest.fixture(scope="module")
def twins(spark):
    """Columns that a case-sensitive application has made."""
    spark.conf.set("spark.sql.caseSensitive", "true")
    frame = spark.range(20).select(
        F.col("id").cast("double").alias("x"),
        (F.col("id") * -1.0).alias("X"),
        F.col("id").alias("label"),
    )
    spark.conf.set("spark.sql.caseSensitive", "false")
    return frame


@pytest.fixture
def case_sensitive(spark):
    spark.conf.set("spark.sql.caseSensitive", "true")
    yield
    spark.conf.set("spark.sql.caseSensitive", "false")


def line(params):
    model = keras.Sequential([keras.Input((1,), name="x"), keras.layers.Dense(1)])
    return KerasEstimator(model=model, optimizer="sgd", loss="mse")


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    rows = {"x": np.arange(8.0), "label": np.arange(8.0)}
    folder = tmp_path_factory.mktemp("model")
    search = GridSearch("inline", folder, line, {"unused": [1]}, 1, feature_columns=["x"])
    return search.fit(rows).get_best_model()


TOLD = r"names that Spark can tell apart, but there are 'x' and 'X'\. Rename .*caseSensitive"


@pytest.mark.parametrize(
    "asked",
    [{}, {"feature_columns": ["x"], "label_columns": ["label"]}, {"validation": "X"}],
    ids=["all", "feature", "validation"],
)
def test_data_with_such_columns_are_not_prepared(spark, twins, tmp_path, asked):
    with pytest.raises(UsageError, match=TOLD):
        SparkBackend(spark).prepare_data(tmp_path / "data", twins, **asked)
    assert not (tmp_path / "data").exists()


def test_columns_that_nobody_asks_for_do_no_harm(spark, twins, tmp_path):
    found = SparkBackend(spark).prepare_data(tmp_path, twins, feature_columns=["label"])
    assert found.train_rows == 20


def test_an_application_that_heeds_case_gets_both(spark, twins, tmp_path, case_sensitive):
    SparkBackend(spark).prepare_data(tmp_path, twins, num_partitions=1)
    columns = open_dataset(tmp_path).open_shard("train", 0).columns
    assert list(columns) == ["x", "X", "label"]
    np.testing.assert_array_equal(columns["x"], -np.asarray(columns["X"]))


def test_predictions_from_such_columns_are_not_made(model, twins):
    with pytest.raises(UsageError, match=TOLD):
        model.transform(twins)


def test_predictions_are_made_where_case_counts(model, twins, case_sensitive):
    rows = model.transform(twins).collect()
    expected = model.transform({"x": np.array([row.x for row in rows])})["label__output"]
    np.testing.assert_allclose([row.label__output for row in rows], expected, rtol=1e-5)


def test_a_name_in_another_case_is_guessed(spark, model, tmp_path):
    frame = spark.range(4).selectExpr("cast(id as double) as Price", "id as label")
    backend = SparkBackend(spark)
    with pytest.raises(UsageError, match=r"no column 'price'.*Did you mean 'Price'\?"):
        backend.prepare_data(tmp_path, frame, feature_columns=["price"])
    with pytest.raises(UsageError, match=r"must name a column.*Did you mean 'Price'\?"):
        backend.prepare_data(tmp_path, frame, "PRICE")
    with pytest.raises(UsageError, match=r"no column 'x'.*Did you mean 'X'\?"):
        model.transform(frame.withColumnRenamed("Price", "X"))


def test_parquet_with_such_columns_is_told(spark, twins, tmp_path, case_sensitive):
    twins.write.parquet(str(tmp_path / "train"))
    spark.conf.set("spark.sql.caseSensitive", "false")
    search = GridSearch(
        SparkBackend(spark), tmp_path / "store", line, {"unused": [1]}, 1, feature_columns=["x"]
    )
    with pytest.raises(UsageError, match="tell apart"):
        search.fit_on_parquet(tmp_path / "train")


def test_columns_with_strange_names_are_features(spark, tmp_path):
    def generate(params):
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        return KerasEstimator(model=model, optimizer="sgd", loss="mse")

    name = "a.b `c`"
    rows = {name: np.arange(8.0), "label": np.arange(8.0)}
    search = GridSearch("inline", tmp_path, generate, {"unused": [1]}, 1, feature_columns=[name])
    best = search.fit(rows).get_best_model()
    frame = spark.range(3).select(F.col("id").cast("double").alias(name))
    assert best.transform(frame).where("label__output is not null").count() == 3
