"""Plain Parquet files, or directories of them, read as one table."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pyarrow as pa
from pyarrow import dataset as arrow_dataset

from cerebro.data.sources.cells import suggest
from cerebro.errors import DataError

#: The fields of a vector of Spark ML, as Parquet files have it.
_VECTOR = {"type", "size", "indices", "values"}


def read_parquet(path: str | os.PathLike[str], names: Sequence[str]) -> pa.Table:
    """Columns of the Parquet files at a path of this machine.

    Raises:
        DataError: There are none, they lack a column, or one is a vector of Spark ML.
    """
    where = os.fspath(path)
    if not os.path.exists(where):
        raise DataError(f"there must be Parquet files at {where}, but there is nothing.")
    try:
        # As Spark does: names that begin with _ or . are not data.
        found = arrow_dataset.dataset(where, format="parquet", exclude_invalid_files=False)
        check_columns(found.schema, names, where)
        return found.to_table(columns=list(names))
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{where} cannot be read as Parquet: {error}.") from error


def check_columns(schema: pa.Schema, names: Sequence[str], where: str) -> None:
    """Raise unless these columns are there, and none is a vector of Spark ML."""
    for name in names:
        if name not in schema.names:
            shown = ", ".join(schema.names[:30])
            raise DataError(
                f"{where} has no column {name!r}. It has: {shown}." + suggest(name, schema.names)
            )
        kind = schema.field(name).type
        if pa.types.is_struct(kind) and {field.name for field in kind} == _VECTOR:
            raise DataError(
                f"{where}: column {name!r} holds vectors of Spark ML, which plain Parquet does not "
                "know. Read the files with Spark and give the DataFrame to fit() or to "
                "backend.prepare_data(), or write arrays instead: "
                f"df.withColumn({name!r}, pyspark.ml.functions.vector_to_array({name!r}))."
            )
