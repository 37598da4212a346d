"""Runs on Ray that wait, are stopped, or have nodes that see and write less than the driver."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import threading
import time

import psutil
import pytest
import ray

from cerebro import Experiment
from cerebro.backend import RayBackend
from cerebro.backend.limits import Limits
from cerebro.backend.ray import vacancy
from cerebro.errors import RunInterrupted, UsageError
from cerebro.storage import layout
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.cluster.rays import connected, nodes, only, wait_until_alone
from tests.experiments import make_toy_data, outcome
from tests.processes import driving, wait_for

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SPACE = {"lr": [0.5, 0.05], "batch_size": 16}
#: For a test that must end long before an actor is taken for hung, however busy the machine is.
HUNG_S = 600.0
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts something, which needs root")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    make_toy_data(folder / "data", shards=3)
    return folder


def run(home, name, backend, task=None):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, seed=5
    )
    fixed = {"metric": "val_loss", "mode": "min", "progress": False, "stack": False}
    experiment.run_fit(task or ToyTask(), SPACE, num_epochs=2, **fixed)
    check(home / "runs" / name)
    return home / "runs" / name


@pytest.fixture(scope="module")
def cluster():
    """A head without room for workers, to which this process is connected."""
    with nodes() as found, connected(found.address):
        yield found


@pytest.fixture(scope="module")
def oracle(home):
    return run(home, "oracle", "inline")


class Hooked(RayBackend):
    """Something befalls it once so many visits were submitted."""

    def __init__(self, after, strike, **options):
        super().__init__(num_workers=1, **options)
        self.after, self.strike = after, strike
        self.submitted = 0

    def submit(self, worker, call, source, *, consume=False):
        super().submit(worker, call, source, consume=consume)
        self.submitted += 1
        if self.submitted == self.after:
            self.strike()


class Listener(logging.Handler):
    """Does something whenever a run says that it waits."""

    def __init__(self, deed):
        super().__init__()
        self.deed = deed
        self.told = []

    def emit(self, record):
        if "waits for workers" in record.getMessage():
            self.told.append(record.getMessage())
            self.deed()

    def __enter__(self):
        logging.getLogger("cerebro.backend").addHandler(self)
        return self

    def __exit__(self, *exc):
        logging.getLogger("cerebro.backend").removeHandler(self)


def test_a_run_without_machines_says_so_can_be_stopped_and_goes_on_when_one_joins(
    home, oracle, cluster, monkeypatch
):
    monkeypatch.setattr(vacancy, "_FIRST_S", 0.5)
    present = [cluster.add()]
    alone = []

    def leave():
        cluster.remove(present.pop())

    def stop():
        if not present:
            os.kill(os.getpid(), signal.SIGINT)

    def come():
        if not present:
            alone.append(True)
            # It is told again as long as there is nobody.
            if len(alone) > 1:
                present.append(cluster.add())

    # By the fifth visit, of two trials, one is at its third: so its first is durable.
    with Listener(stop) as first, pytest.raises(RunInterrupted, match="the same command resumes"):
        run(home, "waiting", Hooked(5, leave))
    wait_until_alone()
    # There is nobody from the beginning on; then one comes, and leaves, and another comes.
    with Listener(come) as second:
        root = run(home, "waiting", Hooked(2, leave))
    leave()
    wait_until_alone()
    assert outcome(root) == outcome(oracle)
    assert len(alone) == 3
    asked = "1 asked for, and the machines of the Ray cluster have places for 0 (CPU: 1 for each"
    assert asked in second.told[0]
    assert f"`ray start --address={cluster.address}` on another machine" in first.told[-1]


def test_a_backend_for_another_cluster_than_the_one_of_this_process_is_refused(cluster):
    with pytest.raises(UsageError) as caught:
        _ = RayBackend(address="10.255.255.1:6379").num_workers
    assert "10.255.255.1:6379" in str(caught.value)
    assert cluster.address in str(caught.value)
    port = cluster.address.rpartition(":")[2]
    for address in (None, "auto", cluster.address, f"127.0.0.1:{port}"):
        backend = RayBackend(address=address)
        # There is room for none: one is asked for all the same.
        assert backend.num_workers == 1
        backend.stop()


def relays():
    found = []
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            # What it is at is told there, too.
            if "".join(child.cmdline()[:1]).startswith("ray::RayRelay"):
                found.append(child)
    return found


def kill_relays(killed):
    for relay in relays():
        with contextlib.suppress(psutil.NoSuchProcess):
            relay.kill()
            killed.append(relay.pid)


@needs_root
def test_a_relay_that_is_killed_is_started_again_and_the_run_goes_on(home, oracle, cluster):
    killed = []

    def kill():
        wait_for(lambda: killed or kill_relays(killed), "a relay")

    with only(cluster, blind=home):
        root = run(home, "unrelayed", Hooked(3, kill))
    assert outcome(root) == outcome(oracle)
    assert killed


@needs_root
def test_a_relay_that_is_killed_while_it_writes_leaves_nothing_half_written(home, cluster):
    # States of 6 MB, so that it is seen at it.
    task = ToyTask(classes=100_000)
    oracle = run(home, "wide", "inline", task)
    found, is_over = [], threading.Event()

    def left():
        folder = home / "runs" / "caught" / layout.TRIALS
        return [path.name for path in folder.glob("*/checkpoints/.tmp-*")]

    def catch():
        while not found and not is_over.wait(0.001):
            for name in left():
                with contextlib.suppress(psutil.NoSuchProcess):
                    writer = psutil.Process(int(name.split("-")[1]))
                    writer.suspend()
                    # It may have been faster; or it is not the relay that writes.
                    if name in left() and writer in relays():
                        found.append(name)
                        writer.kill()
                        break
                    writer.resume()

    catcher = threading.Thread(target=catch)
    catcher.start()
    try:
        with only(cluster, blind=home):
            root = run(home, "caught", RayBackend(num_workers=1), task)
    finally:
        is_over.set()
        catcher.join()
    assert outcome(root) == outcome(oracle)
    assert found


@needs_root
def test_a_node_that_cannot_write_into_the_store_trains_and_others_save(
    home, oracle, cluster, caplog
):
    with only(cluster, reading=home):
        root = run(home, "reading", RayBackend(num_workers=1))
    assert outcome(root) == outcome(oracle)
    assert caplog.text.count("worker 0 saves no more states") == 1


def test_a_second_signal_ends_a_run_whose_actors_hang(home, oracle, cluster):
    """The one that is to save a state is stopped, as by a debugger."""
    with only(cluster):
        stopped, struck = [], []

        class Hanging(RayBackend):
            def save(self, state, request):
                if request.visits == 2:
                    stopped.extend(cluster.agents())
                    for agent in stopped:
                        agent.suspend()
                    struck.append(time.monotonic())
                    for number in (signal.SIGINT, signal.SIGTERM):
                        os.kill(os.getpid(), number)
                return super().save(state, request)

        try:
            with pytest.raises(RunInterrupted, match="stopped at once"):
                run(home, "hanging", Hanging(num_workers=1, limits=Limits(heartbeat_s=HUNG_S)))
            assert time.monotonic() - struck[0] < HUNG_S / 2
        finally:
            for agent in stopped:
                with contextlib.suppress(psutil.NoSuchProcess):
                    agent.resume()
        assert stopped
        assert ray.is_initialized()
        root = run(home, "hanging", RayBackend(num_workers=1))
    assert outcome(root) == outcome(oracle)


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75)], ids=["ctrl-c", "sigterm"]
)
def test_a_run_that_is_stopped_while_ray_starts_leaves_nothing(home, tmp_path, number, code):
    options = {
        "task": "toy",
        "task_options": {},
        "fit": {"space": SPACE, "num_epochs": 1, "metric": "val_loss", "mode": "min"},
        "experiment": {
            "name": "early",
            "data": str(home / "data"),
            "store": str(tmp_path / "runs"),
            "backend": "ray",
            "workers": 1,
        },
    }

    def is_starting(driver):
        driver.workers()
        with contextlib.suppress(psutil.NoSuchProcess):
            children = psutil.Process(driver.pid).children()
            return any("gcs_server" in child.name() for child in children)
        return False

    with driving(options, tmp_path / "output.txt") as driver:
        wait_for(lambda: is_starting(driver), "Ray being started", 240.0)
        # A terminal tells all its processes, a batch system the one that it knows.
        if number == signal.SIGINT:
            driver.signal(number)
        else:
            driver.process.send_signal(number)
        assert driver.wait(240.0) == code, driver.said()
        wait_for(lambda: not driver.survivors(), "nothing of Ray left")
    assert "RunInterrupted: stopped" in driver.said()
    assert not driver.root.exists()
