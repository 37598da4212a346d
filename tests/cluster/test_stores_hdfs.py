"""The store contract, runs and kills on a real HDFS with two DataNodes."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import uuid

import pytest

import cerebro
from cerebro.errors import StoreError
from cerebro.storage import HDFSStore, open_store
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.cluster.hdfs import HdfsCluster
from tests.cluster.remote_contract import RemoteContract
from tests.cluster.sparks import session
from tests.cluster.stored_models import assert_estimators_live_at
from tests.cluster.stored_runs import assert_exact_after_kills, fit_options, visits
from tests.experiments import make_toy_data
from tests.processes import hold, wait_for


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


class TestHdfsStore(RemoteContract):
    """With two DataNodes."""


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


FORKING = """
import os, signal, sys
from cerebro.errors import UsageError
from cerebro.storage import open_store
from cerebro.storage.remote import read_url

url = sys.argv[1]
store = open_store(url)
store.write("a", b"1")
assert store.read("a") == read_url(f"{url}/a") == b"1"
child = os.fork()
if child == 0:
    # Ends one that hangs.
    signal.alarm(60)
    for use in (lambda: store.read("a"), lambda: open_store(url), lambda: read_url(f"{url}/a")):
        try:
            use()
        except UsageError as error:
            assert str(error).startswith("hdfs:// must be used in a process that was started anew")
        else:
            sys.exit("it can be used")
    sys.exit()
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert store.read("a") == read_url(f"{url}/a") == b"1"
"""


def test_a_process_forked_beside_an_open_store_is_told_and_ends(url):
    with subprocess.Popen([sys.executable, "-c", FORKING, url], start_new_session=True) as process:
        try:
            assert process.wait(120) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def test_a_run_killed_at_many_requests_resumes_exactly(url, tmp_path):
    assert assert_exact_after_kills(url, tmp_path, stride=19) > 5


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
        "exp.run_fit(ToyTask(hold=sys.argv[3]), {'lr': [0.5, 0.05]}, **fit_options())\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    gate = hold(tmp_path, 1)
    command = [sys.executable, "-c", script, str(tmp_path / "data"), url, str(tmp_path / "hold")]
    with subprocess.Popen(command, env=environ) as driver:
        try:
            wait_for(lambda: visits(f"{url}/toy") >= 2, "some visits", 240)
            cluster.kill_datanode(0)
            # Those of the second epoch end now.
            gate.unlink()
            assert driver.wait(400) == 0
        finally:
            driver.kill()
            gate.unlink(missing_ok=True)
            cluster.start_datanode(0)
    result = cerebro.Result.open(f"{url}/toy")
    assert result.digest() == whole.digest()
    check(result.path)


@pytest.mark.spark
@pytest.mark.timeout(1200)
def test_estimators_on_spark_keep_all_they_have_on_hdfs(cluster, url):
    host, _, port = cluster.url.removeprefix("hdfs://").partition(":")
    store = HDFSStore(f"/{url.rpartition('/')[2]}", host=host, port=int(port))
    cache = {"spark.executorEnv.CEREBRO_CACHE": os.environ["CEREBRO_CACHE"]}
    with session("local-cluster[2,1,1024]", **cache) as spark:
        assert_estimators_live_at(spark, store, "search")
    assert open_store(f"{store.prefix_path}/best").exists("metadata/_SUCCESS")
