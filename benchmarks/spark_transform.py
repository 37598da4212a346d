"""Predictions for a DataFrame: the fourth case of the Spark benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.report import Report, speedup
from cerebro.backend import SparkBackend
from cerebro.keras import SparkEstimator
from cerebro.storage import LocalStore
from cerebro.tune import GridSearch, hp_choice

WIDTH, CLASSES, PARTS = 64, 10, 8
#: Rows that a model sees at a time on the other side, which does not choose by itself.
BATCH = 8192


def generate(params: Any) -> SparkEstimator:
    """A small network."""
    import keras

    layers = [keras.layers.Dense(256, activation="relu"), keras.layers.Dense(CLASSES, "softmax")]
    model = keras.Sequential([keras.Input((WIDTH,)), *layers])
    return SparkEstimator(model=model, optimizer="sgd", loss="sparse_categorical_crossentropy")


def run(spark: Any, folder: Path, rows: int, rounds: int, report: Report) -> float:
    """How many times as many rows a second as `predict_batch_udf`."""
    from pyspark.sql import functions as F

    numbers = F.array(*[F.rand(n).cast("float") for n in range(WIDTH)])
    frame = spark.range(rows, numPartitions=PARTS).select(
        "id", numbers.alias("features"), (F.col("id") % CLASSES).alias("label")
    )
    frame = frame.persist()
    frame.count()
    model = _trained(spark, folder, frame.limit(500))
    sides: dict[str, Callable[[], Any]] = {
        "ours": lambda: model.transform(frame),
        "udf": lambda: frame.withColumn("label__output", _udf(model)("features")),
    }
    _compare(*(side() for side in sides.values()))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name, side in sides.items():
            began = time.perf_counter()
            side().write.format("noop").mode("overwrite").save()
            # The first round warms up both sides.
            if number:
                seconds[name].append(time.perf_counter() - began)
    frame.unpersist()
    for name, each in seconds.items():
        rate = rows / statistics.median(each)
        print(f"transform: {name} {rate:.0f} rows/s")
        report.add(f"transform_{name}_rows_per_s", rate, 0)
    return speedup(seconds["udf"], seconds["ours"])


def _trained(spark: Any, folder: Path, frame: Any) -> Any:
    store, space = LocalStore(str(folder / "transform")), {"lr": hp_choice([0.1])}
    search = GridSearch(SparkBackend(spark, num_workers=1), store, generate, space, 1, verbose=0)
    return search.fit(frame).get_best_model()


def _udf(model: Any) -> Any:
    """The same model the way Spark's documentation shows."""
    from pyspark.ml.functions import predict_batch_udf
    from pyspark.sql.types import ArrayType, FloatType

    network = model.keras()
    config, weights = network.to_json(), network.get_weights()

    def make() -> Callable[[Any], Any]:
        from cerebro.train.keras.backend import choose_backend

        choose_backend()
        import keras
        import torch

        torch.set_num_threads(1)
        loaded = keras.models.model_from_json(config)
        loaded.set_weights(weights)

        def predict(features: Any) -> Any:
            with torch.no_grad():
                return loaded(features).numpy()

        return predict

    return predict_batch_udf(
        make,
        return_type=ArrayType(FloatType()),
        batch_size=BATCH,
        input_tensor_shapes=[[WIDTH]],
    )


def _compare(ours: Any, theirs: Any) -> None:
    """Both must say the same."""
    first, second = (
        np.array(
            [
                list(row[0])
                for row in each.orderBy("id").limit(100).select("label__output").collect()
            ]
        )
        for each in (ours, theirs)
    )
    np.testing.assert_allclose(first, second, rtol=1e-5, atol=1e-6)
