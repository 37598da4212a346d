"""Spark with nothing but URLs: no directory is shared between the driver and its executors."""

from __future__ import annotations

import uuid

import pytest
from pyspark.sql import functions as F

from cerebro import Experiment
from cerebro.backend import SparkBackend
from cerebro.data import open_dataset
from cerebro.results import Result
from cerebro.storage import PrefixStore, open_store
from cerebro.testing.toy import ToyTask
from tests.cluster.s3 import BUCKET, S3Server
from tests.cluster.sparks import session
from tests.cluster.stored_models import assert_estimators_live_at

pytestmark = pytest.mark.spark


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3"))
    try:
        server.start()
        yield server
    finally:
        server.kill()


def test_data_states_and_checkpoints_live_in_a_bucket(server, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    given = {f"spark.executorEnv.{name}": value for name, value in server.environment.items()}
    store = PrefixStore(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    fit = {"num_epochs": 2, "metric": "val_loss", "mode": "min", "stack": False, "progress": False}
    space = {"lr": [0.5, 0.05], "batch_size": 16}
    with session("local[2]", **given, **{"spark.executorEnv.TMPDIR": str(tmp_path)}) as spark:
        backend = SparkBackend(spark)
        frame = spark.range(120, numPartitions=3).select(
            F.array(*[F.rand(n).cast("float") for n in range(4)]).alias("x"),
            (F.col("id") % 3).alias("y"),
        )
        found = backend.prepare_data(store, frame, 0.25, num_partitions=3)
        assert (found.train_rows, found.val_rows) == (90, 30)
        data = store.get_train_data_path()
        experiment = Experiment(name="run", data=data, store=store.runs_path, backend=backend)
        digest = experiment.run_fit(ToyTask(), space, **fit).digest()
    assert open_dataset(data).rows("train") == 90
    assert store.open_runs().child("run").list("hops") == []
    oracle = Experiment(name="run", data=data, store=tmp_path / "runs", backend="inline", workers=1)
    assert oracle.run_fit(ToyTask(), space, **fit).digest() == digest
    assert Result.open(store.get_run_path("run")).is_finished


@pytest.mark.timeout(1200)
def test_estimators_keep_all_they_have_in_a_bucket(server, monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    given = {f"spark.executorEnv.{name}": value for name, value in server.environment.items()}
    given |= {"spark.executorEnv.TMPDIR": str(tmp_path)}
    store = PrefixStore(f"s3://{BUCKET}/{uuid.uuid4().hex}")
    with session("local-cluster[2,1,1024]", **given) as spark:
        assert_estimators_live_at(spark, store, "search")
    assert open_store(f"{store.prefix_path}/best").exists("model.json")
