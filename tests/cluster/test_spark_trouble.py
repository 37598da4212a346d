"""What happens to Spark's own failures: tasks run twice, executors that see other files."""

from __future__ import annotations

import os
import stat
import sys

import pytest
from pyspark.sql import functions as F

from cerebro.backend import SparkBackend
from cerebro.data import open_dataset
from cerebro.errors import UsageError, WorkerError
from cerebro.testing.backend_session import Session
from tests.cluster.numbered import NumberedOpening, TellNumber
from tests.cluster.sparks import session
from tests.cluster.test_spark_prepare import ids, numbered

pytestmark = pytest.mark.spark


def test_a_task_that_is_run_twice_gives_no_row_twice(tmp_path):
    marks = tmp_path / "marks"
    marks.mkdir()

    def dying(n):
        """The process dies at its first sight of a row."""
        if n == 37 and not os.path.exists(f"{marks}/{n}"):
            open(f"{marks}/{n}", "w").close()
            os._exit(1)
        return n

    with session("local[2,4]") as spark:
        frame = numbered(spark, 100, 4).withColumn("id", F.udf(dying, "long")("id"))
        found = SparkBackend(spark).prepare_data(tmp_path / "data", frame, 0.1, num_partitions=3)
    assert (marks / "37").exists()
    assert (found.train_rows, found.val_rows) == (90, 10)
    dataset = open_dataset(tmp_path / "data")
    assert ids(dataset, "train", "val") == list(range(100))


SCRIPT = """#!/bin/sh
echo '{"name": "gpu", "addresses": ["%s", "%s"]}'
"""
UUIDS = ("GPU-8932f937-d72c-4106-c12f-20bd9faed9f6", "GPU-1b5d2e9f-0c0a-4c3e-9f1d-6c1f5a6d7e8f")


@pytest.mark.parametrize(
    ("addresses", "visible", "numbers"),
    [(("3", "5"), "", {3, 5}), (UUIDS, ",".join(("GPU-another", *UUIDS)), {1, 2})],
    ids=["numbers", "uuids"],
)
def test_a_visit_uses_the_gpu_that_spark_gave_to_its_task(tmp_path, addresses, visible, numbers):
    script = tmp_path / "gpus"
    script.write_text(SCRIPT % addresses)
    script.chmod(script.stat().st_mode | stat.S_IXUSR)
    settings = {
        "spark.worker.resource.gpu.amount": "2",
        "spark.worker.resource.gpu.discoveryScript": str(script),
        "spark.executor.resource.gpu.amount": "2",
        "spark.task.resource.gpu.amount": "1",
        "spark.executorEnv.CUDA_VISIBLE_DEVICES": visible,
    }
    with session("local-cluster[1,2,1024]", **settings) as spark:
        backend = SparkBackend(spark, num_workers=2)
        try:
            backend.start(NumberedOpening(), 2)
            joined = [backend.events()[0].info.worker for _ in range(2)]
            for worker in joined:
                backend.submit(worker, TellNumber(), None)
            answers = [backend.events()[0].answer for _ in joined]
        finally:
            backend.stop()
    assert set(answers) <= numbers


def test_executors_that_lack_something_are_told_and_workers_are_as_many_as_cores(
    tmp_path, monkeypatch
):
    bare = tmp_path / "python"
    bare.write_text(f'#!/bin/sh\nexec {sys.executable} -S "$@"\n')
    bare.chmod(bare.stat().st_mode | stat.S_IXUSR)
    monkeypatch.setenv("PYSPARK_PYTHON", str(bare))
    settings = {"spark.pyspark.python": str(bare), "spark.default.parallelism": "64"}
    with session("local[2]", **settings) as spark:
        backend = SparkBackend(spark)
        assert backend.num_workers == 2
        try:
            backend.start(Session(backend, tmp_path).setup(), 1)
            with pytest.raises(WorkerError, match=r"No module named .*PYSPARK_PYTHON"):
                backend.events()
        finally:
            backend.stop()


WRAPPER = """#!/bin/sh
exec unshare --mount sh -c 'mount -t tmpfs none "$HIDDEN" && exec "$@"' sh {python} "$@"
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can hide a directory from a process")
@pytest.mark.parametrize("hidden", ["run", "data"])
def test_a_directory_that_executors_do_not_see_is_named_before_anything_is_trained(
    tmp_path, monkeypatch, hidden
):
    wrapper = tmp_path / "python"
    wrapper.write_text(WRAPPER.format(python=sys.executable))
    wrapper.chmod(wrapper.stat().st_mode | stat.S_IXUSR)
    (tmp_path / "run").mkdir()
    settings = {
        "spark.pyspark.python": str(wrapper),
        "spark.executorEnv.HIDDEN": str(tmp_path / hidden),
    }
    monkeypatch.setenv("PYSPARK_PYTHON", str(wrapper))
    monkeypatch.setenv("HIDDEN", str(tmp_path / hidden))
    with session("local[1]", **settings) as spark:
        backend = SparkBackend(spark)
        opened = Session(backend, tmp_path)
        try:
            backend.start(opened.setup(), 1)
            with pytest.raises(UsageError) as caught:
                backend.events()
        finally:
            backend.stop()
        with pytest.raises(UsageError, match="seen by the driver as by Spark's executors"):
            backend.prepare_data(tmp_path / hidden, spark.range(4))
    what = "store" if hidden == "run" else "dataset"
    assert f"the {what} must be seen by Spark's executors" in str(caught.value)
    assert str(tmp_path / hidden) in str(caught.value)
    assert "share" in str(caught.value)
