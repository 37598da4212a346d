"""Data of a search: from a table, from Parquet files, or as they were prepared before."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import Any, cast

from cerebro.data import Dataset, open_dataset
from cerebro.data.manifest import FILE
from cerebro.data.parquet_table import read_parquet
from cerebro.data.tabular import FrameCut, from_frame, names_of
from cerebro.errors import DataError, UsageError
from cerebro.estimators.models import is_spark
from cerebro.search.wording import show
from cerebro.storage import PrefixStore
from cerebro.storage.remote_names import local_path, redact

#: Below the prefix: shards made of Parquet files that are not ours to replace.
_FROM_PARQUET = "parquet_shards"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ground:
    """Where data are prepared, which columns, and how they are divided."""

    backend: Any
    store: PrefixStore
    features: tuple[str, ...]
    labels: tuple[str, ...]
    validation: float | str | None
    shards: int | None
    seed: int
    compress_sparse: bool

    @property
    def columns(self) -> tuple[str, ...]:
        return (*self.features, *self.labels)

    @property
    def is_spark(self) -> bool:
        return hasattr(self.backend, "prepare_data")


@dataclass(frozen=True, slots=True)
class Source:
    """Parquet files for training, and for validation if those are elsewhere."""

    train: str
    val: str | None = None

    @classmethod
    def of_store(cls, store: PrefixStore) -> Source:
        """What is at the train and val paths of a store."""
        train, val = store.get_train_data_path(), store.get_val_data_path()
        if store.exists(f"{train}/{FILE}"):
            raise DataError(
                f"{redact(train)} must hold Parquet files, but holds data that were prepared: call "
                "fit_on_prepared_data()."
            )
        if not store.exists(train):
            raise DataError(
                f"there must be data at {redact(train)}, the store's train path, but there is "
                "nothing: call fit(df), or backend.prepare_data(store, df) first."
            )
        return cls(train, val if store.exists(val) else None)


def prepare(ground: Ground, table: object) -> Dataset:
    """A dataset of a table or of Parquet files; an old one of the same place is replaced."""
    if isinstance(table, Source):
        if ground.is_spark:
            return cast(Dataset, _spark().prepare_parquet(ground, table.train, table.val))
        return _parquet_here(ground, table)
    path = ground.store.get_train_data_path()
    _refuse_parquet(ground.store, path)
    if is_spark(table):
        if not ground.is_spark:
            raise UsageError(
                "a Spark DataFrame needs a backend of Spark, but got "
                f"{_name(ground.backend)}: pass backend=SparkBackend(...), or df.toPandas()."
            )
        return cast(Dataset, _spark().prepare_frame(ground, table))
    if ground.is_spark:
        names_of(table)
        raise UsageError(
            f"a SparkBackend needs a Spark DataFrame, but got a {type(table).__name__}: pass "
            "spark.createDataFrame(...) of it."
        )
    _require_local(path)
    return from_frame(path, table, _cut(ground))


def prepared(ground: Ground) -> Dataset:
    """The dataset that is in the store, or one made of the Parquet files there."""
    path = ground.store.get_train_data_path()
    if not ground.store.exists(f"{path}/{FILE}"):
        return prepare(ground, Source.of_store(ground.store))
    dataset = open_dataset(path)
    missing = [name for name in ground.columns if name not in dataset.schema]
    if missing:
        raise DataError(
            f"the data at {redact(path)} must have the columns {', '.join(ground.columns)}, but "
            f"lack {', '.join(missing)}: they were prepared with {', '.join(dataset.schema)}."
        )
    return dataset


def _parquet_here(ground: Ground, source: Source) -> Dataset:
    tables = []
    for url in (source.train, source.val):
        path = None if url is None else local_path(url)
        if url is not None and path is None:
            raise UsageError(
                f"Parquet files that are not on this machine ({redact(url)}) need a SparkBackend."
            )
        extra = [ground.validation] if isinstance(ground.validation, str) and not source.val else []
        tables.append(None if path is None else read_parquet(path, [*ground.columns, *extra]))
    place = from_parquet_path(ground)
    _require_local(place)
    return from_frame(place, tables[0], _cut(ground), val=tables[1])


def _cut(ground: Ground) -> FrameCut:
    return FrameCut(
        columns=ground.columns,
        validation=ground.validation,
        shards=ground.shards,
        seed=ground.seed,
    )


def from_parquet_path(ground: Ground) -> str:
    """Where shards made of Parquet files go."""
    return f"{ground.store.prefix_path}/{_FROM_PARQUET}"


def _refuse_parquet(store: PrefixStore, path: str) -> None:
    """Raise rather than put shards among files that somebody else has put there."""
    if not store.exists(path) or store.exists(f"{path}/{FILE}"):
        return
    if store.exists(f"{path}/_SUCCESS"):
        raise UsageError(
            f"the store's train path {redact(path)} is where fit() keeps prepared data, but holds "
            "other files: call fit_on_parquet() to train on them, or give another train_path."
        )


def _require_local(path: str) -> None:
    if local_path(path) is None:
        raise UsageError(
            f"without Spark, data are prepared in a directory of this machine, but {redact(path)} "
            "is none: give the store a train_path of this machine (runs and models may be "
            "elsewhere), or use a SparkBackend."
        )


def _spark() -> Any:
    return importlib.import_module("cerebro.estimators.spark_data")


def _name(backend: object) -> str:
    return show(backend) if isinstance(backend, str) else type(backend).__name__
