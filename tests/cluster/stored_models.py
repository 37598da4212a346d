"""Estimators on Spark whose data, states, models and logs are all at a URL."""

from __future__ import annotations

from typing import Any

import numpy as np
from pyspark.sql import SparkSession

from cerebro.backend import SparkBackend
from cerebro.data import open_dataset
from cerebro.keras import CerebroModel, SparkEstimator
from cerebro.storage import PrefixStore, open_store
from cerebro.tune import GridSearch, hp_choice

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

ROWS, WIDTH = 80, 4


def sigmoid(params: Any) -> SparkEstimator:
    model = keras.Sequential([keras.Input((WIDTH,)), keras.layers.Dense(1, activation="sigmoid")])
    return SparkEstimator(
        model=model,
        optimizer=keras.optimizers.Adam(learning_rate=params["lr"]),
        loss="binary_crossentropy",
        metrics=["acc"],
        batch_size=16,
    )


def assert_estimators_live_at(spark: SparkSession, store: PrefixStore, name: str) -> None:
    """Fit, predict, keep the best model and predict with it again; nothing is on this machine."""
    drawn = np.random.default_rng(0).normal(size=(ROWS, WIDTH))
    rows = [(n, values.tolist(), float(values.sum() > 0)) for n, values in enumerate(drawn)]
    frame = spark.createDataFrame(rows, ["id", "features", "label"]).repartition(3)
    space = {"lr": hp_choice([0.1, 0.01])}
    backend = SparkBackend(spark, num_workers=2)
    search = GridSearch(backend, store, sigmoid, space, 1, evaluation_metric="acc", name=name)
    result = search.fit(frame)
    assert [str(trial.status) for trial in result.run.trials] == ["finished"] * 2
    data = open_dataset(store.get_train_data_path())
    assert (data.rows("train"), data.rows("val")) == (60, 20)
    assert not [file for file in open_store(data.path).list() if file.startswith("use-")]
    assert open_store(store.get_logs_path(name)).list("t0000")
    best = result.set_output_columns(["said"]).get_best_model()
    expected = _said(best, frame)
    plain = result.keras().predict(drawn.astype(np.float32), verbose=0)[:, 0]
    np.testing.assert_allclose(expected, plain, atol=1e-6)
    best.save(f"{store.prefix_path}/best")
    again = CerebroModel.load(f"{store.prefix_path}/best")
    assert _said(again, frame) == expected
    assert again.get_history() == result.get_history()


def _said(model: CerebroModel, frame: Any) -> list[float]:
    return [row.said for row in model.transform(frame).orderBy("id").collect()]
