"""A DataFrame to shards: the third case of the Spark benchmark."""

from __future__ import annotations

import shutil
import statistics
import time
from pathlib import Path
from typing import Any

from benchmarks.report import Report, slowdown
from cerebro.backend import SparkBackend
from cerebro.data import open_dataset

COLUMNS, SHARDS, PARTS = 50, 8, 8


def run(spark: Any, folder: Path, rows: int, rounds: int, report: Report) -> float:
    """How many times as long as Spark's own repartition and write."""
    from pyspark.sql import functions as F

    columns = [F.rand(n).alias(f"c{n}") for n in range(COLUMNS - 1)]
    frame = spark.range(rows, numPartitions=PARTS).select("id", *columns).persist()
    frame.count()
    backend = SparkBackend(spark)
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(rounds + 1):
        target = folder / "prepared"
        began = time.perf_counter()
        found = backend.prepare_data(str(target), frame, num_partitions=SHARDS)
        middle = time.perf_counter()
        frame.repartition(SHARDS).write.mode("overwrite").parquet(str(folder / "parquet"))
        ended = time.perf_counter()
        assert found.train_rows == spark.read.parquet(str(folder / "parquet")).count() == rows
        assert len(open_dataset(target).shards("train")) == SHARDS
        # The first round warms up both sides.
        if number or not rounds:
            ours.append(middle - began)
            theirs.append(ended - middle)
    shutil.rmtree(folder / "prepared")
    frame.unpersist()
    medians = statistics.median(ours), statistics.median(theirs)
    print(
        f"prepare: {rows} rows x {COLUMNS} columns: ours {medians[0]:.2f} s, Spark's own "
        f"repartition and write {medians[1]:.2f} s"
    )
    report.add("prepare_ours_s", medians[0])
    report.add("prepare_spark_s", medians[1])
    return slowdown(ours, theirs)
