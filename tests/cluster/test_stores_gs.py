"""The store contract, runs, kills and raw data at gs:// URLs."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid

import numpy as np
import pytest

from cerebro import Experiment
from cerebro.data import from_arrays, open_dataset
from cerebro.errors import StoreError
from cerebro.storage import PrefixStore, open_store
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from tests.cluster.gs import BUCKET, GcsServer
from tests.cluster.remote_contract import BucketContract
from tests.cluster.stored_runs import assert_exact_after_kills
from tests.integration.test_raw_data import GRID, Files, Sides

# The client sends blocks as they are.
pytestmark = pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning")


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = GcsServer(tmp_path_factory.mktemp("gcs"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def url(server, monkeypatch, tmp_path):
    """A place of its own in the bucket."""
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"gs://{BUCKET}/{uuid.uuid4().hex}"


class TestGsStore(BucketContract):
    pieces = 5


def test_a_bucket_that_is_not_there_is_named(url):
    with pytest.raises(StoreError, match="gs://nobodys-bucket/x/a"):
        RemoteStore("gs://nobodys-bucket/x", retry=Retry(attempts=1)).write("a", b"1")


def test_an_estimator_store_reads_and_finds(url):
    store = PrefixStore(url)
    store.open_runs().write("search/run.json", b"{}")
    assert store.exists(store.get_run_path("search/run.json"))
    assert store.read(store.get_run_path("search/run.json")) == b"{}"


def test_a_run_killed_at_many_requests_resumes_exactly(url, tmp_path):
    assert assert_exact_after_kills(url, tmp_path, stride=37) > 2


USER = """
import sys
from cerebro.data import open_dataset
from cerebro.data.use import in_use
dataset = open_dataset(sys.argv[1])
print("ready", flush=True)
sys.stdin.readline()
with in_use(dataset):
    print("has it", flush=True)
    sys.stdin.readline()
"""


def test_searches_that_begin_at_the_same_moment_all_get_the_data(url, tmp_path):
    made = from_arrays(tmp_path / "data", {"x": [1.0, 2.0]}, shards=1).path
    for name in open_store(made).list():
        open_store(url).write(name, open_store(made).read(name))
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", USER, url]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    users = [subprocess.Popen(command, env=environ, **pipes) for _ in range(2)]
    try:
        for expected in ("ready", "has it"):
            assert [user.stdout.readline().strip() for user in users] == [expected] * 2
            for user in users:
                user.stdin.write("\n")
                user.stdin.flush()
        assert [user.wait(60) for user in users] == [0] * 2
    finally:
        for user in users:
            user.kill()
            user.communicate()
    left = [name for name in open_store(url).list() if name.startswith("use-")]
    assert left == []


def test_raw_data_and_models_are_read_there_and_what_is_prepared_is_kept_there(url, tmp_path):
    raw = open_store(f"{url}/raw")
    points = np.random.default_rng(0).normal(size=(60, 2)).astype(np.float32)
    for number, point in enumerate(points):
        raw.write(f"points/{number}.bin", point.tobytes())
    for name, rows in {
        "train-0": range(30),
        "train-1": range(30, 48),
        "val": range(48, 60),
    }.items():
        lines = (f"r{n},{n}.bin,{int(points[n].sum() > 0)}" for n in rows)
        raw.write(f"{name}.csv", "\n".join(["id,file,label", *lines]).encode())
    raw.write("scale.json", b"2.0")
    places = {"etl_dir": f"{url}/kept", "output_dir": str(tmp_path / "out")}
    sources = {
        "train_main": f"{url}/raw/train-*.csv",
        "val_main": f"{url}/raw/val.csv",
        "train_dir": f"{url}/raw/points",
        "val_dir": f"{url}/raw/points",
        "misc": [f"{url}/raw/scale.json"],
    }
    first = Experiment({**sources, **places}, name="points", backend="inline", workers=1)
    report = first.run_etl(Files(), shards=2)
    assert {name: split.rows for name, split in report.splits.items()} == {"train": 48, "val": 12}
    elsewhere = {**places, "output_dir": str(tmp_path / "other"), "models_dir": f"{url}/models"}
    other = Experiment(elsewhere, name="points", backend="inline", workers=1)
    result = other.run_fit(Sides(), GRID, 1)
    assert open_dataset(other.data).digest == open_dataset(first.data).digest
    exported = tmp_path / "m.safetensors"
    result.export("best", path=exported, task=Sides())
    open_store(f"{url}/models").write("m.safetensors", exported.read_bytes())
    found = other.run_test(Sides(), "m.safetensors", 10, split="val", params=result.best.params)
    assert found["m"]["loss"] == pytest.approx(result.best.metrics["val_loss"])
