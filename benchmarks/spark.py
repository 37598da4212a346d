"""Model selection on Spark, against other ways to do the same on the same executors.

    python -m benchmarks.spark [--json] [--data FILE.npz] [--quick] [--case NAME]

visit    what a visit costs beside its training: from `submit` to its event, less the time in the
         training loop, on local-cluster[2,1,1024]; against a bare `runJob` that does nothing, in
         turn with it. The state hops through a directory and is durable.
search   8 trials x 2 epochs of an MLP on the pictures, on two executors: ours (a checkpoint after
         every visit), `TorchDistributor` (DDP with gloo, one trial after another), and a job with
         a task for each trial that loads all the data itself; one round. `bytes_read` are those of
         shards that processes map and digest, each once as long as a process lives.
prepare  rows of 50 float64 columns to 8 shuffled shards with digests: `prepare_data`, against
         Spark's own `repartition(8).write.parquet`, from the same cached DataFrame.
transform  predictions of a Keras MLP for rows of 64 floats: `transform` of a trained model, against
         `pyspark.ml.functions.predict_batch_udf` with the same network and the same results.

Needs Java 17 and `pip install 'cerebro[spark,keras]'`. Sides take turns; times are medians, bounds
take the worse of the ratio of medians and that of the fastest rounds. About 5 minutes.

Predicted before the first measurement, on two cores:
- visit: 25 ms more than a bare job: the state is written and synced twice, the answer pickled.
- search: TorchDistributor takes 3 times as long, as every trial pays for its start; a task a trial
  0.8 times as long, as it hops nowhere: two executors have all the data that there is.
- prepare: 0.9 of Spark's time, as its shuffle sorts rows and ours moves whole columns.
- transform: 1.3 times as many rows a second, as columns come from Arrow without pandas between.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from benchmarks import spark_prepare, spark_search, spark_transform, spark_visit
from benchmarks.environment import FOLDER, ROOT
from benchmarks.report import Report

CASES = ("visit", "search", "prepare", "transform")
ROWS, QUICK_ROWS = 1_000_000, 20_000
#: Milliseconds above a bare job; times Spark's own.
VISIT_MS, PREPARE_MOST = 50.0, 1.5
#: Rows to predict, and times those that a UDF of Spark's predicts meanwhile.
TRANSFORM_ROWS, TRANSFORM_LEAST = 400_000, 1.0
SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "3g",
    "spark.executor.memory": "1g",
    "spark.sql.parquet.compression.codec": "none",
    "spark.executorEnv.PYTHONPATH": str(ROOT),
    "spark.executorEnv.OMP_NUM_THREADS": "1",
}


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="model selection on Spark")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--quick", action="store_true", help="few rows, one round, no bounds")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    return parser.parse_args()


@contextlib.contextmanager
def session(master: str) -> Iterator[Any]:
    """A Spark session whose executors find these modules."""
    from pyspark.sql import SparkSession

    os.environ |= {"PYTHONPATH": str(ROOT), "PYSPARK_PYTHON": sys.executable}
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    builder: Any = SparkSession.builder.master(master)
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    try:
        yield spark
    finally:
        spark.stop()


def main() -> int:
    given = options()
    report = Report()
    report.add("load", os.getloadavg()[0])
    cases = given.case or CASES
    FOLDER.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="cerebro-spark-", dir=FOLDER) as name:
        folder = Path(name)
        with session("local-cluster[2,1,1024]") as spark:
            if "visit" in cases:
                above_ms = spark_visit.run(spark, folder, 10 if given.quick else 60, report)
                most = None if given.quick else VISIT_MS
                report.gate("visit_above_bare_ms", above_ms, at_most=most)
            if "search" in cases:
                trials = 2 if given.quick else len(spark_search.RATES)
                spark_search.run(spark, folder, given.data, trials, report)
        if "prepare" in cases:
            with session("local[2]") as spark:
                rows, rounds = (QUICK_ROWS, 1) if given.quick else (ROWS, 3)
                ratio = spark_prepare.run(spark, folder, rows, rounds, report)
                most = None if given.quick else PREPARE_MOST
                report.gate("prepare_of_spark", ratio, at_most=most)
        if "transform" in cases:
            with session("local[2]") as spark:
                rows, rounds = (QUICK_ROWS, 1) if given.quick else (TRANSFORM_ROWS, 3)
                ratio = spark_transform.run(spark, folder, rows, rounds, report)
                least = None if given.quick else TRANSFORM_LEAST
                report.gate("transform_vs_udf", ratio, at_least=least)
    return report.finish(as_json=given.json)


if __name__ == "__main__":
    sys.exit(main())
