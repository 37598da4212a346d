"""What users of estimators see on Spark."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from pyspark.ml import PipelineModel
from pyspark.ml.functions import vector_to_array
from pyspark.ml.linalg import DenseVector, Vectors

from cerebro.backend import SparkBackend
from cerebro.data import open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.keras import CerebroModel, SparkEstimator
from cerebro.storage import LocalStore
from cerebro.torch import TorchEstimator
from cerebro.tune import GridSearch, RandomSearch, TPESearch, hp_choice, hp_loguniform
from tests.cluster.sparks import session

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]
WIDTH = 6


@pytest.fixture(scope="module")
def spark():
    with session("local[2]") as found:
        yield found


def sigmoid(params):
    model = keras.Sequential()
    model.add(keras.Input((WIDTH,)))
    model.add(keras.layers.Dense(4, activation="relu"))
    model.add(keras.layers.Dense(1, activation="sigmoid"))
    return SparkEstimator(
        model=model,
        optimizer=keras.optimizers.Adam(learning_rate=params["lr"]),
        loss="binary_crossentropy",
        metrics=["acc"],
        batch_size=params.get("batch_size", 16),
    )


def softmax(params):
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(2, activation="softmax")])
    loss = "sparse_categorical_crossentropy"
    return SparkEstimator(model=model, optimizer="adam", loss=loss, metrics=["acc"])


def with_a_function_of_its_own(factor):
    def scaled(x):
        return keras.ops.sigmoid(x) * factor

    @keras.saving.register_keras_serializable("tests")
    def registered(x):
        return keras.ops.relu(x)

    def generate(params):
        layers = [
            keras.layers.Dense(3, activation=registered),
            keras.layers.Dense(1, activation=scaled),
        ]
        model = keras.Sequential([keras.Input((WIDTH,)), *layers])
        custom = {"scaled": scaled}
        return SparkEstimator(model=model, optimizer="sgd", loss="mse", custom_objects=custom)

    return generate


def plain_torch(params):
    from torch import nn

    model = nn.Linear(WIDTH, 2)
    return TorchEstimator(model=model, optimizer="sgd", loss="cross_entropy", metrics=["acc"])


def rows(count=120, seed=0):
    drawn = np.random.default_rng(seed)
    for number in range(count):
        values = drawn.normal(size=WIDTH)
        vector = Vectors.dense(values)
        if number % 2:
            kept = [n for n in range(WIDTH) if n % 3]
            vector = Vectors.sparse(WIDTH, kept, values[kept])
        yield float(vector.toArray().sum() > 0), vector, number


@pytest.fixture(scope="module")
def frame(spark):
    return spark.createDataFrame(list(rows()), ["label", "features", "id"]).repartition(3).cache()


@pytest.fixture(scope="module")
def backend(spark):
    return SparkBackend(spark, num_workers=2)


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return LocalStore(tmp_path_factory.mktemp("store"))


@pytest.fixture(scope="module")
def result(backend, store, frame):
    space = {"lr": hp_choice([0.1, 0.01])}
    return GridSearch(backend, store, sigmoid, space, 2, evaluation_metric="acc").fit(frame)


def test_the_documented_flow_gives_models_and_histories(result):
    assert len(result.get_all_models()) == len(result.get_all_model_history()) == 2
    assert list(result.get_history()) == ["train_loss", "train_acc", "val_loss", "val_acc"]


def test_fit_again_is_done_at_once_and_tells_nothing(result, backend, store, frame, caplog):
    space = {"lr": hp_choice([0.1, 0.01])}
    again = GridSearch("spark", store, sigmoid, space, 2, evaluation_metric="acc").fit(frame)
    assert again.run.path == result.run.path
    assert again.run.digest() == result.run.digest()
    assert caplog.messages == []


def test_the_weights_are_those_of_an_inline_run_on_the_same_shards(result, store):
    space = {"lr": hp_choice([0.1, 0.01])}
    inline = GridSearch(
        "inline", store, sigmoid, space, 2, evaluation_metric="acc", name="inline"
    ).fit_on_prepared_data()
    assert inline.run.digest() == result.run.digest()


def test_predictions_on_executors_are_those_of_the_plain_model(result, frame):
    found = result.set_output_columns(["said"]).transform(frame)
    assert found.columns == [*frame.columns, "said"]
    assert dict(found.dtypes)["said"] == "double"
    told = found.select("features", "said").collect()
    inputs = np.array([row.features.toArray() for row in told], np.float32)
    expected = result.keras().predict(inputs, verbose=0)[:, 0]
    assert np.allclose([row.said for row in told], expected, atol=1e-6)


def test_predictions_replace_no_column_whatever_its_case(result, frame):
    model = result.get_best_model()
    before = model.output_columns
    with pytest.raises(UsageError, match=r"the table has 'id' already, which would be lost"):
        model.set_output_columns(["ID"]).transform(frame)
    model.output_columns = before


def test_all_other_columns_stay_as_they_are(result, frame):
    found = result.transform(frame)
    assert [found.schema[name] for name in frame.columns] == frame.schema.fields
    before = {row.id: row.features for row in frame.collect()}
    assert {row.id: row.features for row in found.collect()} == before


def test_a_softmax_comes_back_as_a_vector(backend, store, frame):
    result = GridSearch(backend, store, softmax, {"unused": [1]}, 1).fit(frame)
    told = result.transform(frame).select("label__output").first()[0]
    assert isinstance(told, DenseVector)
    assert len(told) == 2
    assert np.isclose(told.toArray().sum(), 1)


def test_models_are_kept_as_spark_ml_objects_and_in_pipelines(result, frame, tmp_path):
    best = result.set_output_columns(["said"]).get_best_model()
    expected = [row[0] for row in best.transform(frame).orderBy("id").select("said").collect()]
    best.write().overwrite().save(str(tmp_path / "model"))
    PipelineModel([best]).write().overwrite().save(str(tmp_path / "pipeline"))
    for loaded in (
        CerebroModel.load(tmp_path / "model"),
        PipelineModel.load(str(tmp_path / "pipeline")),
    ):
        again = loaded.transform(frame).orderBy("id").select("said").collect()
        assert [row[0] for row in again] == expected
    metadata = json.loads(next((tmp_path / "model/metadata").glob("part-*")).read_text())
    assert metadata["class"] == "cerebro.estimators.spark_model.SparkModel"


def test_all_models_are_kept_and_loaded_again(result, frame, tmp_path):
    for model in result.set_output_columns(["said"]).get_all_models():
        model.save(tmp_path / model.run_id)
        again = CerebroModel.load(tmp_path / model.run_id)
        assert again.transform(frame).collect() == model.transform(frame).collect()
        assert (again.getRunId(), again.getHistory()) == (model.run_id, model.get_history())


def test_a_python_process_loads_a_model_once(backend, store, frame, tmp_path):
    log = str(tmp_path / "loads")

    class Logged(keras.layers.Layer):
        @classmethod
        def from_config(cls, config):
            with open(log, "a") as file:
                file.write(f"{os.getpid()}\n")
            return cls(**config)

        def call(self, inputs):
            return inputs

    def generate(params):
        layers = [keras.Input((WIDTH,)), Logged(), keras.layers.Dense(1)]
        custom = {"Logged": Logged}
        model = keras.Sequential(layers)
        return SparkEstimator(model=model, optimizer="sgd", loss="mse", custom_objects=custom)

    result = GridSearch(backend, store, generate, {"unused": [1]}, 1).fit(frame)
    found = result.transform(frame.repartition(6))
    for _ in range(2):
        assert found.where("label__output is not null").count() == 120
    loads = Counter(int(pid) for pid in Path(log).read_text().split())
    assert len(loads) >= 2
    assert set(loads.values()) == {1}


def test_torch_models_are_trained_and_predict_on_spark(backend, store, frame):
    result = GridSearch(backend, store, plain_torch, {"unused": [1]}, 1).fit(frame)
    told = result.transform(frame).select("label__output").first()[0]
    assert len(told) == 2


def test_a_torch_model_is_kept_as_an_object_of_spark_and_loaded_again(
    backend, store, frame, tmp_path
):
    result = GridSearch(backend, store, plain_torch, {"unused": [1]}, 1).fit(frame)
    result.get_best_model().save(tmp_path / "torch")
    with pytest.raises(UsageError, match="pass estimator_gen_fn="):
        CerebroModel.load(tmp_path / "torch")
    again = CerebroModel.load(tmp_path / "torch", estimator_gen_fn=plain_torch)
    assert again.transform(frame).collect() == result.transform(frame).collect()


def test_functions_of_ones_own_reach_the_executors(backend, store, frame):
    search = GridSearch(backend, store, with_a_function_of_its_own(3.0), {"unused": [1]}, 1)
    result = search.fit(frame)
    assert result.transform(frame).where("label__output between 0 and 3").count() == 120


def test_an_empty_frame_is_predicted(result, frame):
    assert result.transform(frame.where("id < 0")).count() == 0


def test_a_missing_column_is_named(result, frame):
    with pytest.raises(UsageError, match=r"no column 'features'.*It has: label, id"):
        result.transform(frame.drop("features"))


def test_prepared_data_are_used_by_another_search(backend, store, frame, result):
    space = {"lr": hp_loguniform(-3, -1)}
    search = TPESearch(backend, store, sigmoid, space, 3, 1)
    found = search.fit_on_prepared_data()
    assert len(found.get_all_model_history()) == 3
    assert all(1e-3 <= m.trial_params["lr"] <= 1e-1 for m in found.get_all_models())


def test_the_literal_calls_of_the_documentation_prepare_data(backend, frame, tmp_path):
    store = LocalStore(tmp_path, train_path=tmp_path / "a", val_path=tmp_path / "b")
    counts = backend.prepare_data(
        store, frame, validation=0.25, feature_column="features", label_column="label"
    )
    assert sum(counts[:2]) == 120
    search = RandomSearch(backend, store, sigmoid, {"lr": hp_choice([0.1, 0.2])}, 1, 1)
    assert len(search.fit_on_prepared_data().get_all_models()) == 1


def test_without_validation_no_earlier_validation_rows_are_used(backend, frame, tmp_path):
    space = {"lr": [0.1]}
    GridSearch(backend, tmp_path, sigmoid, space, 1, validation=0.5).fit(frame)
    result = GridSearch(backend, tmp_path, sigmoid, space, 1, validation=None).fit(frame)
    assert set(result.get_history()) == {"train_loss", "train_acc"}


def test_plain_parquet_at_the_paths_of_the_store(backend, frame, tmp_path):
    arrays = frame.withColumn("features", vector_to_array("features"))
    arrays.where("id < 80").write.parquet(str(tmp_path / "train"))
    arrays.where("id >= 80").write.parquet(str(tmp_path / "val"))
    before = sorted(os.listdir(tmp_path / "train"))
    store = LocalStore(tmp_path / "store", tmp_path / "train", tmp_path / "val")
    result = GridSearch(backend, store, sigmoid, {"lr": [0.1]}, 1).fit_on_parquet()
    data = open_dataset(str(result.run.document.spec["data"]))
    assert (data.rows("train"), data.rows("val")) == (80, 40)
    assert sorted(os.listdir(tmp_path / "train")) == before


def test_vectors_in_parquet_are_refused_with_what_to_do(backend, frame, tmp_path):
    frame.write.parquet(str(tmp_path / "train"))
    search = GridSearch(backend, tmp_path / "store", sigmoid, {"lr": [0.1]}, 1)
    with pytest.raises(DataError, match=r"'features' holds vectors of Spark ML.*vector_to_array"):
        search.fit_on_parquet(tmp_path / "train")


def test_tensorboard_files_are_in_logdir(backend, store, frame, tmp_path):
    GridSearch(
        backend, store, sigmoid, {"lr": [0.1]}, 1, logdir=tmp_path, name="logged"
    ).fit_on_prepared_data()
    assert len(list(Path(tmp_path, "logged").glob("t0000/events*"))) == 1


def test_tables_and_backends_must_belong_together(backend, store, frame):
    with pytest.raises(UsageError, match=r"needs a backend of Spark"):
        GridSearch("inline", store, sigmoid, {"lr": [0.1]}, 1).fit(frame)
    table = {"features": np.zeros((4, WIDTH)), "label": np.zeros(4)}
    with pytest.raises(UsageError, match=r"needs a Spark DataFrame, but got a dict"):
        GridSearch(backend, store, sigmoid, {"lr": [0.1]}, 1).fit(table)


IMPORTED = """
import signal, psutil
before = [signal.getsignal(number) for number in signal.valid_signals()]
from cerebro.backend import SparkBackend
from cerebro.keras import CerebroModel, SparkEstimator
from cerebro.storage import HDFSStore, LocalStore
from cerebro.tune import GridSearch, HyperOpt, ModelSelectionResult, RandomSearch, hp_choice
assert [signal.getsignal(number) for number in signal.valid_signals()] == before
assert not psutil.Process().net_connections()
"""


def test_the_documented_imports_change_no_signal_and_open_no_port():
    subprocess.run([sys.executable, "-W", "ignore", "-c", IMPORTED], check=True)
