"""From CSV files to a submission: sales of drug stores, predicted by networks with embeddings.

    python -m examples.spark_rossmann                      # small tables of the same schema
    python -m examples.spark_rossmann --data rossmann      # the competition's own files

Spark joins seven tables into 18 categorical and 18 continuous features, a search trains networks
that differ in depth, learning rate and regularisation, the best one predicts the test rows.
"""

import argparse
from pathlib import Path

from pyspark.sql import SparkSession, functions

from cerebro.backend import SparkBackend
from cerebro.keras import SparkEstimator
from cerebro.storage import LocalStore
from cerebro.tune import TPESearch, hp_choice, hp_loguniform, hp_quniform
from examples.spark_rossmann_data import CATEGORICAL, CONTINUOUS, features, write_tables

import keras  # isort: skip  # after cerebro.keras, which chooses its backend

EMBEDDING = 10


@keras.saving.register_keras_serializable("rossmann")
def exp_rmspe(y_true, y_pred):
    """Root mean square percentage error of sales, whose logarithms these are."""
    y_true, y_pred = keras.ops.exp(keras.ops.reshape(y_true, (-1, 1))), keras.ops.exp(y_pred)
    return keras.ops.sqrt(keras.ops.mean(keras.ops.square((y_true - y_pred) / y_true)))


def make_generator(sizes, max_log, width):
    """A function that makes estimators, for features with so many categories."""

    @keras.saving.register_keras_serializable("rossmann")
    def scaled_sigmoid(x):
        return keras.ops.sigmoid(x) * max_log * 1.2

    def estimator_gen_fn(params):
        inputs = {name: keras.Input((1,), name=name) for name in (*CATEGORICAL, *CONTINUOUS)}
        parts = [
            keras.layers.Flatten()(keras.layers.Embedding(size, EMBEDDING)(inputs[name]))
            for name, size in sizes.items()
        ]
        x = keras.layers.Concatenate()([*parts, *(inputs[name] for name in CONTINUOUS)])
        for layer in range(params["num_layers"]):
            l2 = keras.regularizers.l2(params["l2"])
            size = width // 2 if layer == params["num_layers"] - 1 else width
            x = keras.layers.Dense(size, activation="relu", kernel_regularizer=l2)(x)
        output = keras.layers.Dense(1, activation=scaled_sigmoid, name="Sales")(x)
        return SparkEstimator(
            model=keras.Model(list(inputs.values()), output),
            optimizer=keras.optimizers.Adam(learning_rate=params["lr"]),
            loss="mae",
            metrics=[exp_rmspe],
            custom_objects={"exp_rmspe": exp_rmspe, "scaled_sigmoid": scaled_sigmoid},
            batch_size=params["batch_size"],
        )

    return estimator_gen_fn


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="directory of the competition's CSV files")
    parser.add_argument("--work-dir", type=Path, default=Path("demo/rossmann"))
    parser.add_argument("--num-models", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=64, help="units of a layer; 1000 for the real")
    options = parser.parse_args()
    folder = options.work_dir.absolute()

    spark = SparkSession.builder.appName("Rossmann").getOrCreate()
    data = options.data or folder / "tables"
    if options.data is None:
        write_tables(data)
    train, test = features(spark, data)
    highest = train.agg(functions.max("Sales"), *map(functions.max, CATEGORICAL)).first()
    of_tests = test.agg(*map(functions.max, CATEGORICAL)).first()
    sizes = {n: 1 + max(a, b) for n, a, b in zip(CATEGORICAL, highest[1:], of_tests, strict=True)}

    search = TPESearch(
        backend=SparkBackend(spark),
        store=LocalStore(folder / "store"),
        estimator_gen_fn=make_generator(sizes, float(highest[0]), options.width),
        search_space={
            "lr": hp_loguniform(-4, -2),
            "l2": hp_loguniform(-6, -3),
            "num_layers": hp_choice([1, 2, 3]),
            "batch_size": hp_quniform(16, 256, 16),
        },
        num_models=options.num_models,
        num_epochs=options.epochs,
        evaluation_metric="exp_rmspe",
        validation="Validation",
        feature_columns=[*CATEGORICAL, *CONTINUOUS],
        label_columns=["Sales"],
    )
    result = search.fit(train)
    print(f"best exp_rmspe: {min(result.get_history()['val_exp_rmspe']):.4f}")
    result.keras().save(folder / "best.keras")

    sales = functions.when(test["Open"] == 0, 0.0).otherwise(functions.exp("predicted"))
    predicted = result.set_output_columns(["predicted"]).transform(test)
    rows = predicted.select("Id", sales.alias("Sales")).orderBy("Id").collect()
    submission = folder / "submission.csv"
    submission.write_text("Id,Sales\n" + "".join(f"{i},{s:.2f}\n" for i, s in rows))
    print(f"{len(rows)} predictions in {submission}")


if __name__ == "__main__":
    main()
