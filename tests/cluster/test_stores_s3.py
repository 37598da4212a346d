"""The store contract, runs and kills on a real S3 server."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid

import pytest

import cerebro
from cerebro.errors import StoreError
from cerebro.storage import PrefixStore, open_store
from cerebro.storage.lock import RunLock
from cerebro.storage.remote_retry import Retry
from cerebro.storage.remote_store import RemoteStore
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.cluster.remote_contract import BucketContract
from tests.cluster.s3 import BUCKET, SECRET, S3Server
from tests.cluster.stored_runs import assert_exact_after_kills, fit_options, visits
from tests.experiments import make_toy_data
from tests.processes import hold, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = S3Server(tmp_path_factory.mktemp("s3"))
    server.start()
    yield server
    server.kill()


@pytest.fixture
def url(server, monkeypatch, tmp_path):
    """A place of its own in the bucket."""
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    return f"s3://{BUCKET}/{uuid.uuid4().hex}"


class TestS3Store(BucketContract):
    pieces = 9


def test_a_wrong_key_is_refused_and_not_shown(url, monkeypatch):
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", f"{SECRET}-wrong")
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    try:
        with pytest.raises(StoreError) as caught:
            RemoteStore(url, retry=Retry(attempts=1)).write("a", b"1")
    finally:
        fsspec.get_filesystem_class("s3").clear_instance_cache()
    assert SECRET not in str(caught.value)
    assert "Check that" in str(caught.value)


def test_an_estimator_store_reads_and_finds(url):
    store = PrefixStore(url)
    store.open_runs().write("search/run.json", b"{}")
    assert store.exists(store.get_run_path("search/run.json"))
    assert store.read(store.get_run_path("search/run.json")) == b"{}"


def test_a_run_killed_at_many_requests_resumes_exactly(url, tmp_path):
    kills = assert_exact_after_kills(url, tmp_path, stride=19)
    assert kills > 5


def test_a_run_goes_on_when_the_server_was_away(tmp_path, monkeypatch):
    """R9: the server is killed amid a run and started again a little later."""
    folder = tmp_path / "s3"
    folder.mkdir()
    server = S3Server(folder)
    monkeypatch.setenv("CEREBRO_CACHE", str(tmp_path / "cache"))
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    import fsspec

    fsspec.get_filesystem_class("s3").clear_instance_cache()
    make_toy_data(tmp_path / "data")
    whole = cerebro.Experiment(
        name="toy", data=tmp_path / "data", store=tmp_path / "local", backend="inline", workers=1
    ).run_fit(ToyTask(), {"lr": [0.5, 0.05]}, **fit_options())
    server.start()
    try:
        url = f"s3://{BUCKET}/runs"
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
        command = [sys.executable, "-c", script]
        command += [str(tmp_path / "data"), url, str(tmp_path / "hold")]
        with subprocess.Popen(command, env=environ) as driver:
            try:
                wait_for(lambda: visits(f"{url}/toy") >= 2, "some visits", 240)
                server.kill()
            finally:
                # Those of the second epoch end now.
                gate.unlink()
            with pytest.raises(subprocess.TimeoutExpired):
                driver.wait(3)
            server.start()
            assert driver.wait(400) == 0
        result = cerebro.Result.open(f"{url}/toy")
        assert result.digest() == whole.digest()
        check(result.path)
    finally:
        server.kill()
        fsspec.get_filesystem_class("s3").clear_instance_cache()


def test_a_lease_of_a_killed_process_is_taken_over(url):
    script = (
        "import os, signal, sys\n"
        "from cerebro.storage import open_store\n"
        "from cerebro.storage.lock import RunLock\n"
        "RunLock(open_store(sys.argv[1])).acquire()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", script, url], env=environ, check=False)
    assert done.returncode == -signal.SIGKILL
    with RunLock(open_store(url)):
        assert open_store(url).list() == ["lock.000002"]
