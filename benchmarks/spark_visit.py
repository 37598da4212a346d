"""What a visit on Spark costs beside its training: the first case of the Spark benchmark."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from benchmarks.report import Report
from cerebro.backend import SparkBackend
from cerebro.backend.base import Done
from cerebro.testing.backend_session import Session, make_call


def run(spark: Any, folder: Path, visits: int, report: Report) -> float:
    """Milliseconds that a visit takes above a bare job, medians; in turn."""
    backend = SparkBackend(spark, num_workers=1)
    session = Session(backend, folder / "visit")
    bare_rdd = spark.sparkContext.parallelize([0], 1).persist()
    bare: list[float] = []
    ours: list[float] = []
    try:
        session.start(1)
        state = session.train(0, make_call())
        for number in range(visits + 5):
            began = time.perf_counter()
            spark.sparkContext.runJob(bare_rdd, _nothing)
            middle = time.perf_counter()
            done = session.run(0, make_call(1), state)
            ended = time.perf_counter()
            assert isinstance(done, Done)
            assert done.state is not None
            backend.release(done.state)
            # The first ones warm up both sides.
            if number >= 5:
                bare.append(middle - began)
                ours.append(ended - middle - done.report.compute_s)
    finally:
        backend.stop()
    medians = [statistics.median(each) * 1000 for each in (bare, ours)]
    print(f"visit: a bare job {medians[0]:.1f} ms, a visit beside its training {medians[1]:.1f} ms")
    report.add("visit_bare_ms", medians[0], 1)
    report.add("visit_ours_ms", medians[1], 1)
    return medians[1] - medians[0]


def _nothing(rows: Iterable[int]) -> list[int]:
    return list(rows)
