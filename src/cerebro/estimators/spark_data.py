"""Data of a search that Spark holds: DataFrames, and Parquet files that executors read."""

from __future__ import annotations

from typing import Any

from pyspark.errors import AnalysisException
from pyspark.ml.linalg import VectorUDT
from pyspark.sql import SparkSession, functions

from cerebro.data import Dataset, open_dataset
from cerebro.errors import DataError, UsageError
from cerebro.estimators.preparation import Ground, from_parquet_path
from cerebro.storage import PrefixStore
from cerebro.storage.remote_names import redact

#: A column that tells rows of the val path from those of the train path.
_IS_VALIDATION = "__cerebro_is_validation"


def prepare_frame(ground: Ground, frame: Any) -> Dataset:
    """A dataset of a DataFrame, written by the executors."""
    return _prepare(ground, frame, ground.store, ground.validation)


def prepare_parquet(ground: Ground, train: str, val: str | None) -> Dataset:
    """A dataset of Parquet files, beside them: they stay as they are."""
    store = PrefixStore(ground.store.prefix_path, train_path=from_parquet_path(ground))
    frame = _read(ground, train)
    if val is None:
        return _prepare(ground, frame, store, ground.validation)
    both = frame.withColumn(_IS_VALIDATION, functions.lit(False)).unionByName(
        _read(ground, val).withColumn(_IS_VALIDATION, functions.lit(True))
    )
    return _prepare(ground, both, store, _IS_VALIDATION)


def _read(ground: Ground, url: str) -> Any:
    session = SparkSession.builder.getOrCreate()
    try:
        frame = session.read.parquet(url)
    except AnalysisException as error:
        if error.getCondition() != "COLUMN_ALREADY_EXISTS":
            raise
        raise UsageError(
            f"{redact(url)}: columns must have names that Spark can tell apart, but two are called "
            f"{(error.getMessageParameters() or {}).get('columnName')}, perhaps in another case. "
            "Set spark.sql.caseSensitive to true, or rename one where the files are written."
        ) from None
    for name in ground.columns:
        if name in frame.columns and isinstance(frame.schema[name].dataType, VectorUDT):
            raise DataError(
                f"{redact(url)}: column {name!r} holds vectors of Spark ML, which plain Parquet "
                "does not know. Give the DataFrame to fit() or to backend.prepare_data(), or write "
                f"arrays: df.withColumn({name!r}, pyspark.ml.functions.vector_to_array({name!r}))."
            )
    return frame


def _prepare(
    ground: Ground, frame: Any, store: PrefixStore, validation: float | str | None
) -> Dataset:
    ground.backend.prepare_data(
        store,
        frame,
        validation=validation,
        num_partitions=ground.shards,
        feature_columns=list(ground.features),
        label_columns=list(ground.labels),
        compress_sparse=ground.compress_sparse,
        seed=ground.seed,
    )
    return open_dataset(store.get_train_data_path())
