"""Spark's sides of the ETL benchmark, local with two cores, in an environment of its own."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.etl_pictures import listed, tally_pictures
from benchmarks.etl_side import Told, Work, digests_in
from benchmarks.etl_tally import tally_columns


def started() -> Any:
    """A session; the programs of its workers are told where these modules are."""
    os.environ["PYTHONPATH"] = os.getcwd()
    os.environ["PYSPARK_PYTHON"] = sys.executable
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.memory": "4g",
        "spark.sql.parquet.compression.codec": "none",
        # Thousands of small files: many of them in one task.
        "spark.sql.files.openCostInBytes": "4096",
    }
    builder = import_module("pyspark.sql").SparkSession.builder.master("local[2]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    return builder.getOrCreate()


def pictures(work: Work) -> Told:
    """Files as bytes, decoded in Python, every row in a random place."""
    session = started()
    yield {}
    labels = {os.path.realpath(path): label for path, label in listed(work)}

    def prepare(frames: Iterator[Any]) -> Iterator[Any]:
        for frame in frames:
            paths = [os.path.realpath(path.removeprefix("file:")) for path in frame["path"]]
            decoded = [np.asarray(Image.open(io.BytesIO(data))) for data in frame["content"]]
            frame = frame[[]]
            frame["x"] = [picture.tobytes() for picture in decoded]
            frame["y"] = [labels[path] for path in paths]
            yield frame

    files = session.read.format("binaryFile").option("recursiveFileLookup", "true")
    rows = files.option("pathGlobFilter", "*.[pj][np]g").load(work["folder"])
    rows = rows.select("path", "content").mapInPandas(prepare, "x binary, y long")
    rows.repartition(work["shards"]).write.mode("overwrite").parquet(work["out"])
    yield {"digests": digests_in(work["out"], ".parquet")}
    found = [part.to_pydict() for part in read(work)]
    yield tally_pictures(
        (np.stack([np.frombuffer(x, np.uint8) for x in part["x"]]), part["y"]) for part in found
    )
    session.stop()


def table(work: Work) -> Told:
    """Sorted by random numbers, which is how Spark shuffles rows; types are given."""
    session = started()
    functions = import_module("pyspark.sql.functions")
    yield {}
    rows = session.read.csv(work["csv"], header=True, inferSchema=True)
    rows = rows.withColumn("order", functions.rand(1))
    rows = rows.repartitionByRange(work["shards"], "order").sortWithinPartitions("order")
    rows.drop("order").write.mode("overwrite").parquet(work["out"])
    yield {"digests": digests_in(work["out"], ".parquet")}
    yield tally_columns(
        {name: part[name].to_numpy() for name in part.column_names} for part in read(work)
    )
    session.stop()


def read(work: Work) -> Iterator[Any]:
    parquet = import_module("pyarrow.parquet")
    for path in digests_in(work["out"], ".parquet"):
        yield parquet.read_table(path)
