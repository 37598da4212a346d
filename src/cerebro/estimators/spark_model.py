"""Trained models on Spark: predictions on all executors, and models as Spark ML objects."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa
from pyspark.ml import Model
from pyspark.ml.functions import array_to_vector, vector_to_array
from pyspark.ml.linalg import VectorUDT
from pyspark.ml.util import (
    DefaultParamsReader,
    DefaultParamsWriter,
    MLReadable,
    MLReader,
    MLWritable,
    MLWriter,
)
from pyspark.sql import Column, DataFrame, SparkSession, functions
from pyspark.sql.types import ArrayType, DataType, DoubleType, StructField, StructType

from cerebro.backend.spark.context import folds_case, meant, quoted, refuse_twins
from cerebro.backend.spark.trouble import require_cerebro
from cerebro.data.tabular import as_arrow, columns_of
from cerebro.errors import UsageError
from cerebro.estimators.history import History
from cerebro.estimators.kinds import portable_of
from cerebro.estimators.models import MODEL, CerebroModel
from cerebro.estimators.prediction import (
    Portable,
    Predictor,
    check_are_new,
    flat,
    opened,
    output_columns,
    predicted,
)
from cerebro.storage.remote_names import scheme_of
from cerebro.types import Params

#: Dimensions of an output, rows included, that becomes a column of vectors.
_VECTOR_RANK = 2
#: Bytes of a file in one row of a saved model.
_CHUNK = 64 << 20


class SparkModel(CerebroModel, Model, MLWritable, MLReadable):  # type: ignore[misc]
    """A trained model that is a transformer of Spark ML too: it can stand in a PipelineModel."""

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
        Model.__init__(self)
        CerebroModel.__init__(
            self,
            make,
            run_id=run_id,
            params=params,
            history=history,
            label_columns=label_columns,
            output_columns=output_columns,
        )

    def transform(self, frame: Any, params: object = None) -> Any:
        """A table with predictions added as columns; see `CerebroModel.transform`."""
        if params:
            raise UsageError("a trained model has no params to change, but transform() got some.")
        return CerebroModel.transform(self, frame)

    def _transform(self, dataset: DataFrame) -> DataFrame:
        return transform(self, dataset)

    def write(self) -> MLWriter:
        """What saves it: `model.write().overwrite().save(path)`."""
        return _Writer(self)

    def save(self, path: Any) -> None:
        """Write the model as a Spark ML object, on any file system that Spark knows.

        At a URL that Spark cannot write to (s3:// without Hadoop's module for it), the model is
        kept as `CerebroModel.save` does it. `CerebroModel.load` takes both.
        """
        if _is_known_to_spark(str(path)):
            self.write().save(str(path))
        else:
            CerebroModel.save(self, path)

    @classmethod
    def read(cls) -> MLReader[SparkModel]:
        """What loads it: `SparkModel.read().load(path)`."""
        return _Reader()

    @classmethod
    def load(cls, path: Any, **given: Any) -> SparkModel:
        """A model that `save` wrote; what else is given is as in `CerebroModel.load`."""
        return _Reader(**given).load(str(path))


def transform(model: CerebroModel, frame: DataFrame) -> DataFrame:
    """A DataFrame with predictions, made by the executors as rows are asked for."""
    check_are_new(model.output_columns, frame.columns, folds_case=folds_case(frame))
    portable = model.portable
    refuse_twins(frame, portable.features)
    features = [_feature(frame, name) for name in portable.features]
    predictor = opened(portable.digest, portable.open)
    ranks = predictor.output_ranks() or _ranks_of_a_row(predictor, portable, frame, features)
    names = output_columns(list(ranks), model.label_columns, model.output_columns)
    kinds = [_type(rank) for rank in ranks.values()]
    fields = [StructField(f"output_{n}", kind) for n, kind in enumerate(kinds)]
    require_cerebro(frame.sparkSession.sparkContext)
    # Executors fetch weights once; functions of the user's own travel with this one.
    weights = frame.sparkSession.sparkContext.broadcast(portable.weights)
    digest, shell = portable.digest, portable.with_weights(b"")

    def predict(batches: Iterator[tuple[pa.Array, ...]]) -> Iterator[pa.Array]:
        found = opened(digest, lambda: shell.with_weights(weights.value).open())
        return _predict(found, shell.features, batches)

    # It is sent the features alone, and answers with the outputs: all else stays in Spark.
    found = functions.arrow_udf(predict, StructType(fields))(*features)
    columns = {}
    for field, name, rank in zip(fields, names, ranks.values(), strict=True):
        output = found[field.name]
        columns[name] = array_to_vector(output) if rank == _VECTOR_RANK else output
    return frame.withColumns(columns)


def _predict(
    predictor: Predictor, features: Sequence[str], batches: Iterator[Any]
) -> Iterator[pa.Array]:
    """What executors do with the rows of a partition: batches of one array for each feature."""
    for batch in batches:
        found = predicted(predictor, _columns(features, batch))
        arrays = [_as_column(output) for output in found.values()]
        yield pa.StructArray.from_arrays(arrays, [f"output_{n}" for n in range(len(arrays))])


def _columns(features: Sequence[str], batch: Any) -> dict[str, Any]:
    arrays = batch if isinstance(batch, tuple) else (batch,)
    table = pa.table(list(arrays), names=list(features))
    return dict(columns_of(table, features, where="the DataFrame"))


def _feature(frame: DataFrame, name: str) -> Column:
    """A feature as the model takes it: of vectors, arrays."""
    if name not in frame.columns:
        raise UsageError(
            f"the DataFrame has no column {name!r}, which the model needs. It has: "
            f"{', '.join(frame.columns[:30])}.{meant(name, frame.columns)}"
        )
    column = functions.col(quoted(name))
    is_vector = isinstance(frame.schema[name].dataType, VectorUDT)
    return vector_to_array(column, "float32") if is_vector else column


def _ranks_of_a_row(
    predictor: Predictor, portable: Portable, frame: DataFrame, features: Sequence[Column]
) -> dict[str, int]:
    """The dimensions of outputs, for models that do not tell them: found by a first row."""
    row = frame.limit(1).select(*features).toArrow()
    if not row.num_rows:
        raise UsageError(
            "the DataFrame must have a row to tell what the model gives, but has none."
        )
    found = predictor.predict(_columns(portable.features, tuple(row.columns)))
    return {name: flat(output).ndim for name, output in found.items()}


def _type(rank: int) -> DataType:
    kind: DataType = DoubleType()
    for _ in range(rank - 1):
        kind = ArrayType(kind, containsNull=False)
    return kind


def _as_column(output: Any) -> pa.Array:
    column = as_arrow(flat(output).astype("float64"))
    return column.cast(_lists(column.type))


def _lists(kind: pa.DataType) -> pa.DataType:
    """The same with lists of any length, which is what Spark takes."""
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_lists(kind.value_type))
    return kind


class _Writer(MLWriter):  # type: ignore[misc]
    """Saves a model as metadata and a table of its files."""

    def __init__(self, model: SparkModel) -> None:
        super().__init__()
        self._model = model

    def saveImpl(self, path: str) -> None:
        session = self.sparkSession
        DefaultParamsWriter.saveMetadata(self._model, path, session)
        rows = [
            (name, number, content[start : start + _CHUNK])
            for name, content in self._model.to_files().items()
            for number, start in enumerate(range(0, len(content), _CHUNK))
        ]
        names, numbers, parts = zip(*rows, strict=True)
        table = pa.table({"file": list(names), "part": list(numbers), "content": list(parts)})
        session.createDataFrame(table).coalesce(1).write.parquet(f"{path}/data")


class _Reader(MLReader[SparkModel]):  # type: ignore[misc]
    """Loads a model."""

    def __init__(
        self,
        custom_objects: Mapping[str, Any] | None = None,
        estimator_gen_fn: Callable[[Any], object] | None = None,
    ) -> None:
        super().__init__()
        self._custom_objects = custom_objects or {}
        self._estimator_gen_fn = estimator_gen_fn

    def load(self, path: str) -> SparkModel:
        session = self.sparkSession
        metadata = DefaultParamsReader.loadMetadata(path, session)
        table = (
            session.read.parquet(f"{path}/data")
            .toArrow()
            .sort_by([("file", "ascending"), ("part", "ascending")])
        )
        files: dict[str, bytes] = {}
        for name, content in zip(
            table["file"].to_pylist(), table["content"].to_pylist(), strict=True
        ):
            files[name] = files.get(name, b"") + content
        about = json.loads(files[MODEL])
        portable = portable_of(about, files, self._custom_objects, self._estimator_gen_fn)
        model = SparkModel.from_json(about, portable)
        model._resetUid(metadata["uid"])  # As Spark's own readers do.
        return model


def _is_known_to_spark(path: str) -> bool:
    """Whether Spark has a file system for what a path or URL names."""
    scheme = scheme_of(path)
    if scheme is None:
        return True
    context = SparkSession.builder.getOrCreate().sparkContext
    files = context._jvm.org.apache.hadoop.fs.FileSystem
    try:
        files.getFileSystemClass(scheme, context._jsc.hadoopConfiguration())
    except Exception:
        # Java's: there is no such class.
        return False
    return True


def load(
    path: str,
    custom_objects: Mapping[str, Any] | None,
    estimator_gen_fn: Callable[[Any], object] | None,
) -> SparkModel:
    """A model that was saved as a Spark ML object."""
    SparkSession.builder.getOrCreate()
    return SparkModel.load(path, custom_objects=custom_objects, estimator_gen_fn=estimator_gen_fn)
