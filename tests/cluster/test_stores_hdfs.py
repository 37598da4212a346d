"""The store contract, runs and kills on a real HDFS with two DataNodes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import uuid

import pytest

import cerebro
from cerebro.errors import LeaseLostError, StoreError
from cerebro.storage import HDFSStore, open_store
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing.history import check
from cerebro.testing.store_contract import StoreContract
from cerebro.testing.toy import ToyTask
from tests.cluster.hdfs import HdfsCluster
from tests.cluster.stored_runs import assert_exact_after_kills, fit_options, visits
from tests.experiments import make_toy_data
from tests.processes import wait_for


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    cluster = HdfsCluster(tmp_path_factory.mktemp("hdfs"))
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


@pytest.fixture
def url(cluster, monkeypatch, tmp_path):
    """A directory of its own."""
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    return f"{cluster.url}/{uuid.uuid4().hex}"


class TestHdfsStore(StoreContract):
    @pytest.fixture
    def store(self, url):
        store = open_store(url)
        yield store
        store.close()


def test_of_many_who_create_a_file_one_succeeds(url):
    together, made = threading.Barrier(8), []

    def contend(number):
        store = RemoteStore(url)
        together.wait()
        if store.create("a", b"%d" % number):
            made.append(number)

    threads = [threading.Thread(target=contend, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert open_store(url).list() == ["a"]


def test_of_two_who_append_at_the_same_place_one_is_told(url):
    first, second = open_store(url), open_store(url)
    first.append("a", b"one")
    second.append("a", b"two")
    with pytest.raises(LeaseLostError):
        first.append("a", b"three")
    assert open_store(url).read("a") == b"onetwo"


def test_an_estimator_store_reads_and_finds(cluster, url):
    host, _, port = cluster.url.removeprefix("hdfs://").partition(":")
    store = HDFSStore(f"/{url.rpartition('/')[2]}", host=host, port=int(port))
    store.open_runs().write("search/run.json", b"{}")
    path = store.get_run_path("search/run.json")
    assert (store.exists(path), store.read(path)) == (True, b"{}")
    assert not store.exists(store.get_run_path("other"))


def test_a_namenode_that_is_not_there_is_named():
    with pytest.raises(StoreError, match=r"hdfs://127\.0\.0\.1:1/x/a"):
        RemoteStore("hdfs://127.0.0.1:1/x", retry=Retry(attempts=1)).write("a", b"1")


def test_a_run_killed_at_many_requests_resumes_exactly(url, tmp_path):
    assert assert_exact_after_kills(url, tmp_path, stride=11) > 5


def test_a_run_outlives_a_datanode_that_is_killed(cluster, url, tmp_path):
    """What was written is on the other one; what is written next goes there."""
    make_toy_data(tmp_path / "data")
    whole = cerebro.Experiment(
        name="toy", data=tmp_path / "data", store=tmp_path / "local", backend="inline", workers=1
    ).run_fit(ToyTask(), {"lr": [0.5, 0.05]}, **fit_options())
    script = (
        "import sys, cerebro\n"
        "from cerebro.testing.toy import ToyTask\n"
        "from tests.cluster.stored_runs import fit_options\n"
        "exp = cerebro.Experiment(name='toy', data=sys.argv[1], store=sys.argv[2],"
        " backend='local', workers=2)\n"
        "exp.run_fit(ToyTask(visit_s=0.3), {'lr': [0.5, 0.05]}, **fit_options())\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    command = [sys.executable, "-c", script, str(tmp_path / "data"), url]
    with subprocess.Popen(command, env=environ) as driver:
        try:
            wait_for(lambda: visits(f"{url}/toy") >= 2, "some visits")
            cluster.kill_datanode(0)
            assert driver.wait(200) == 0
        finally:
            driver.kill()
            cluster.start_datanode(0)
    result = cerebro.Result.open(f"{url}/toy")
    assert result.digest() == whole.digest()
    check(result.path)
