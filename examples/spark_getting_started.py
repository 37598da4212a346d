"""Model selection on a Spark DataFrame: 692 features in sparse vectors, two classes.

    spark-submit examples/spark_getting_started.py          # or plain python: local[2]

Without `--data FILE` (libsvm) it makes a file with rows of its own.
"""

import argparse
import random
from pathlib import Path

import numpy as np
from pyspark.sql import SparkSession

from cerebro.backend import SparkBackend
from cerebro.keras import SparkEstimator
from cerebro.storage import LocalStore
from cerebro.tune import HyperOpt, hp_choice, hp_quniform

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

FEATURES = 692


def estimator_gen_fn(params):
    model = keras.models.Sequential()
    model.add(keras.Input((FEATURES,)))
    model.add(keras.layers.Dense(100))
    model.add(keras.layers.Dense(1))
    model.add(keras.layers.Activation("sigmoid"))
    return SparkEstimator(
        model=model,
        optimizer=keras.optimizers.Adam(learning_rate=params["lr"]),
        loss="binary_crossentropy",
        metrics=["acc"],
        batch_size=params["batch_size"],
    )


def write_rows(path: Path, rows: int) -> Path:
    """Rows in the form of libsvm: each class has its own half of the features, mostly."""
    path.parent.mkdir(parents=True, exist_ok=True)
    drawn = random.Random(0)
    with path.open("w") as file:
        for row in range(rows):
            label = row % 2
            half = drawn.sample(range(label * 300, label * 300 + 392), 40)
            values = " ".join(f"{index + 1}:{drawn.random():.3f}" for index in sorted(half))
            file.write(f"{label} {values}\n")
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="a libsvm file with 692 features")
    parser.add_argument("--work-dir", type=Path, default=Path("demo/spark"))
    parser.add_argument("--num-models", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    folder = options.work_dir.absolute()

    spark = SparkSession.builder.appName("Cerebro Example").getOrCreate()
    data = options.data or write_rows(folder / "rows.libsvm", 400)
    rows = spark.read.format("libsvm").option("numFeatures", FEATURES).load(str(data))
    train_df, test_df = rows.randomSplit([0.8, 0.2], seed=0)

    model_selection = HyperOpt(
        backend=SparkBackend(spark_context=spark.sparkContext),
        store=LocalStore(prefix_path=folder / "experiments"),
        estimator_gen_fn=estimator_gen_fn,
        search_space={
            "lr": hp_choice([0.01, 0.001, 0.0001]),
            "batch_size": hp_quniform(16, 256, 16),
        },
        num_models=options.num_models,
        num_epochs=options.epochs,
        validation=0.25,
        evaluation_metric="loss",
        feature_columns=["features"],
        label_columns=["label"],
        logdir=folder / "logs",
    )
    model = model_selection.fit(train_df)
    print("best:", model.get_best_model(), {k: v[-1] for k, v in model.get_history().items()})

    output_df = model.set_output_columns(["label_predicted"]).transform(test_df)
    output_df.select("label", "label_predicted").show(n=10)

    print("models:", len(model.get_all_models()), "histories:", len(model.get_all_model_history()))
    keras_model = model.keras()
    print("ones:", keras_model.predict(np.ones([1, FEATURES], dtype=np.float32), verbose=0))
    keras_model.save(folder / "best.keras")
    model.get_best_model().write().overwrite().save(str(folder / "best.spark"))


if __name__ == "__main__":
    main()
