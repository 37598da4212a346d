"""CerebroModel: a trained model that predicts tables, and can be kept."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from types import ModuleType
from typing import Any, Self, cast

from cerebro.data.tabular import Frame, columns_of, names_of, with_columns
from cerebro.errors import UsageError
from cerebro.estimators.history import History
from cerebro.estimators.kinds import portable_of
from cerebro.estimators.prediction import (
    Portable,
    check_are_new,
    flat,
    opened,
    output_columns,
    predicted,
)
from cerebro.search.wording import show
from cerebro.storage import open_store
from cerebro.types import Params

MODEL = "model.json"


class CerebroModel:
    """A model that was trained by a search. It is loaded when it is first used.

    >>> from cerebro.keras import CerebroModel
    >>> CerebroModel.load("no/such/model")
    Traceback (most recent call last):
    cerebro.errors.UsageError: a saved model must have a model.json, but no/such/model has none.
    """

    def __init__(
        self,
        make: Callable[[], Portable],
        *,
        run_id: str,
        params: Params,
        history: History,
        label_columns: Sequence[str],
        output_columns: Sequence[str] = (),
    ) -> None:
        self._make = make
        #: The trial's name: `result.run.history(run_id)` tells more.
        self.run_id = run_id
        self.trial_params = dict(params)
        self.label_columns = tuple(label_columns)
        self.output_columns = tuple(output_columns)
        self._history = history

    @cached_property
    def portable(self) -> Portable:
        """The model as values, for other processes and for files."""
        return self._make()

    @property
    def feature_columns(self) -> tuple[str, ...]:
        return self.portable.features

    def get_history(self) -> History:
        """Metric -> its value in each epoch: `train_loss`, `val_loss`, `val_<metric>`, …"""
        return self._history

    def set_output_columns(self, columns: Sequence[str]) -> CerebroModel:
        """Name the columns that `transform` adds, one for each output; returns the model."""
        self.output_columns = check_output_columns(columns)
        return self

    # The names that these have in Spark ML, and had in earlier versions.
    getHistory = get_history
    setOutputCols = set_output_columns

    def getRunId(self) -> str:
        """The trial's name, `run_id`."""
        return self.run_id

    def transform(self, frame: Frame) -> Frame:
        """A table with predictions added as columns, `<label>__output` unless named otherwise.

        Takes a Spark DataFrame, which is predicted on all executors, a pandas or polars DataFrame,
        an Arrow table, or a dict of arrays by name, and returns the same kind. An output of one
        number a row becomes a column of numbers, a longer one of vectors (in Spark) or lists.
        """
        if is_spark(frame):
            return _spark().transform(self, frame)
        check_are_new(self.output_columns, names_of(frame))
        columns = columns_of(frame, self.portable.features)
        found = predicted(opened(self.portable.digest, self.portable.open), columns)
        names = output_columns(list(found), self.label_columns, self.output_columns)
        arrays = [flat(array) for array in found.values()]
        return with_columns(frame, dict(zip(names, arrays, strict=True)))

    def keras(self) -> Any:
        """A plain Keras model of your own, which predicts what `transform` does."""
        return self._native("keras")

    def torch(self) -> Any:
        """A plain `nn.Module` of your own, which predicts what `transform` does."""
        return self._native("torch")

    def _native(self, kind: str) -> Any:
        if self.portable.kind != kind:
            raise UsageError(
                f"a {kind} model must have been trained as one, but {self.run_id} is a "
                f"{self.portable.kind} model: call {self.portable.kind}()."
            )
        return self.portable.open().model

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the model to a directory, which may be a URL: JSON and safetensors, no pickle.

        With Spark at hand, `write().save(path)` of a model that Spark's `transform` used, or of a
        pipeline that has it, writes a Spark ML object.
        """
        store = open_store(path)
        for name, content in self.to_files().items():
            store.write(name, content)

    def write(self) -> Any:
        """A writer of Spark ML, of models that were trained on Spark: `write().overwrite()`."""
        raise UsageError(
            "a writer of Spark ML needs a model that was trained on Spark, but this one was not: "
            "call save(path)."
        )

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        custom_objects: Mapping[str, Any] | None = None,
        estimator_gen_fn: Callable[[Any], object] | None = None,
    ) -> CerebroModel:
        """A model that `save` wrote, or that Spark ML did.

        Args:
            path: The directory, or its URL.
            custom_objects: Layers and functions of your own by name, for a Keras model.
            estimator_gen_fn: The function that made it, for a PyTorch model.
        """
        store = open_store(path)
        if not store.exists(MODEL):
            if store.exists("metadata/_SUCCESS"):
                found = _spark().load(os.fspath(path), custom_objects, estimator_gen_fn)
                return cast(CerebroModel, found)
            raise UsageError(f"a saved model must have a {MODEL}, but {os.fspath(path)} has none.")
        about = json.loads(store.read(MODEL))
        files = {name: bytes(store.read(name)) for name in about["files"]}
        portable = portable_of(about, files, custom_objects or {}, estimator_gen_fn)
        return cls.from_json(about, portable)

    def to_files(self) -> dict[str, bytes]:
        """All that a saved model consists of, by the name of the file."""
        files = self.portable.to_files()
        about = {
            "format": 1,
            "kind": self.portable.kind,
            "files": list(files),
            "features": list(self.portable.features),
            "labels": list(self.label_columns),
            "outputs": list(self.output_columns),
            "run_id": self.run_id,
            "params": self.trial_params,
            "history": self._history,
        }
        return {**files, MODEL: json.dumps(about, indent=1).encode() + b"\n"}

    @classmethod
    def from_json(cls, about: Mapping[str, Any], portable: Portable) -> Self:
        """A model made of what `to_files` wrote down."""
        return cls(
            lambda: portable,
            run_id=about["run_id"],
            params=about["params"],
            history=about["history"],
            label_columns=about["labels"],
            output_columns=about["outputs"],
        )

    def __repr__(self) -> str:
        told = ", ".join(f"{name}={show(value)}" for name, value in self.trial_params.items())
        return f"{type(self).__name__}({self.run_id}: {told})"


def _spark() -> ModuleType:
    return importlib.import_module("cerebro.estimators.spark_model")


def check_output_columns(columns: object) -> tuple[str, ...]:
    """Names of columns, different from each other."""
    names = [columns] if isinstance(columns, str) else columns
    if (
        not isinstance(names, list | tuple)
        or not all(isinstance(name, str) and name for name in names)
        or len(set(names)) < len(names)
    ):
        raise UsageError(
            f"output columns must be a list of different names, but got {show(columns)}."
        )
    return tuple(names)


def model_class(backend: object) -> type[CerebroModel]:
    """The class of models for a backend: with one of Spark they are Spark ML objects as well."""
    if hasattr(backend, "prepare_data"):
        found: type[CerebroModel] = _spark().SparkModel
        return found
    return CerebroModel


def is_spark(frame: object) -> bool:
    """Whether it is a DataFrame of Spark, of whichever kind."""
    return any(cls.__module__.startswith("pyspark.sql") for cls in type(frame).__mro__)
