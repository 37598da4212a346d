"""The same result on Spark as anywhere else, whatever becomes of its executors."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from cerebro import Experiment, Result
from cerebro.backend import SparkBackend
from cerebro.data import digits, from_arrays
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.cluster.sparks import ROOT, Standalone, executors, session
from tests.experiments import make_toy_data, outcome
from tests.processes import count_lines, count_visits, hold, wait_for
from tests.tasks import Net

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]

SPACE = {"lr": [0.1, 0.01], "width": [16, 24], "batch_size": 32}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("spark")
    data = {name: column[:600] for name, column in digits().items()}
    from_arrays(folder / "data", train=data, shards=3, validation=0.2)
    return folder


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """A standalone master and two workers."""
    found = Standalone(tmp_path_factory.mktemp("standalone"), workers=2)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def run(home, name, backend, task=None, space=SPACE, **options):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=2, seed=5
    )
    experiment.run_fit(
        task or Net(),
        space,
        num_epochs=2,
        metric="val_loss",
        mode="min",
        progress=False,
        **{"stack": False, **options},
    )
    check(home / "runs" / name)
    return home / "runs" / name


@pytest.fixture(scope="module")
def oracle(home):
    """One process, one visit after another."""
    return run(home, "oracle", "inline")


def visits(root):
    return [r for r in read(DirectoryStore(root)).records if r["type"] == "visit"]


def test_worker_processes_agree(home, oracle):
    assert outcome(run(home, "local", "local")) == outcome(oracle)


def test_spark_in_one_process_gives_the_digest_of_the_inline_backend(home, oracle):
    with session("local[2]"):
        root = run(home, "spark", "spark")
    assert outcome(root) == outcome(oracle)
    assert list((root / "trials/t0000/checkpoints").glob("*.safetensors"))
    assert not (root / "hops").exists()


def test_stacks_hop_on_spark_as_anywhere_else(home):
    run(home, "stacked", "inline", stack=4)
    with session("local[2]"):
        root = run(home, "stacked-spark", "spark", stack=4)
    assert Result.open(root).digest() == Result.open(home / "runs/stacked").digest()


def test_a_local_cluster_gives_the_digest_of_the_inline_backend(home, oracle):
    with session("local-cluster[2,1,1024]") as spark:
        root = run(home, "local-cluster", SparkBackend(spark))
        assert len(executors(spark)) == 2
    assert outcome(root) == outcome(oracle)


def test_another_application_trains_on_what_one_has_prepared(tmp_path):
    found = []
    for number in range(2):
        with session("local[2]") as spark:
            backend = SparkBackend(spark)
            if number == 0:
                rows = spark.range(60).selectExpr("array(float(id), float(1)) as x", "id % 3 as y")
                backend.prepare_data(tmp_path / "data", rows, 0.25, num_partitions=3)
            space = {"lr": [0.5], "batch_size": 16}
            found.append(
                (
                    spark.sparkContext.applicationId,
                    run(tmp_path, f"run{number}", backend, ToyTask(), space),
                )
            )
    (first, one), (second, other) = found
    assert first != second
    assert outcome(one) == outcome(other)


def test_a_standalone_cluster_gives_the_digest_of_the_inline_backend(home, oracle, cluster):
    with session(cluster.url) as spark:
        root = run(home, "standalone", SparkBackend(spark.sparkContext, num_workers=2))
    assert outcome(root) == outcome(oracle)
    assert all(record["host"] for record in visits(root))


def test_an_executor_that_is_killed_costs_no_more_than_its_visits(tmp_path, cluster):
    make_toy_data(tmp_path / "data", shards=3)
    space = {"lr": [0.5, 0.05, 0.005], "batch_size": 16}
    oracle = run(tmp_path, "oracle", "inline", ToyTask(), space)
    task = ToyTask(hold=str(tmp_path / "hold"), log=str(tmp_path / "visits"))
    with session(cluster.url) as spark:
        backend = Killing(spark, task, after=4)
        root = run(tmp_path, "killed", backend, task, space)
    assert backend.killed
    assert outcome(root) == outcome(oracle)
    # Nothing but what the executor had at that moment is done twice.
    assert 18 < count_lines(backend.log) <= 20


class Killing(SparkBackend):
    """Kills an executor while it is at a visit, once so many have begun."""

    def __init__(self, spark, task, *, after):
        super().__init__(spark, num_workers=2)
        self.spark, self.after = spark, after
        self.gates = [Path(f"{task.hold}{epoch}") for epoch in (0, 1)]
        self.log = Path(task.log)
        self.killed = 0

    def submit(self, worker, call, source, *, consume=False):
        if self.killed or count_lines(self.log) < self.after or not call.is_training:
            super().submit(worker, call, source, consume=consume)
            return
        # A visit that begins from here on does not end.
        for gate in self.gates:
            gate.touch()
        try:
            begun = count_lines(self.log)
            super().submit(worker, call, source, consume=consume)
            # Its executor may still have to start.
            wait_for(lambda: count_lines(self.log) > begun, "the next visit begins", 120)
            visitor = psutil.Process(int(self.log.read_text().split()[-1]))
            known = {executor.pid for executor in executors(self.spark)}
            (self.killed,) = known & {parent.pid for parent in visitor.parents()}
            os.kill(self.killed, signal.SIGKILL)
        finally:
            for gate in self.gates:
                gate.unlink()


DRIVER = """
import json, sys
from cerebro import Experiment
from cerebro.testing.toy import ToyTask
from tests.cluster.sparks import session
options = json.loads(sys.argv[1])
with session(options["master"]):
    Experiment(**options["experiment"]).run_fit(
        ToyTask(hold=options["hold"]), options["space"], num_epochs=2, metric="val_loss",
        mode="min", stack=False, progress=False)
"""


def test_another_driver_goes_on_where_a_killed_one_stopped(tmp_path):
    make_toy_data(tmp_path / "data", shards=3)
    space = {"lr": [0.5, 0.05, 0.005], "batch_size": 16}
    oracle = run(tmp_path, "oracle", "inline", ToyTask(), space)
    root = tmp_path / "runs" / "killed"
    experiment = {"name": "killed", "data": str(tmp_path / "data"), "backend": "spark"}
    experiment |= {"store": str(tmp_path / "runs"), "workers": 2, "seed": 5}
    gate = hold(tmp_path, 1)
    options = {"experiment": experiment, "space": space, "master": "local[2]"}
    options["hold"] = str(tmp_path / "hold")
    command = [sys.executable, "-c", DRIVER, json.dumps(options)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as driver:
        try:
            wait_for(
                lambda: count_visits(root) >= 5 or driver.poll() is not None, "five visits", 120
            )
            assert driver.poll() is None
            os.killpg(driver.pid, signal.SIGKILL)
        finally:
            # The second epoch is for the next driver.
            gate.unlink()
    done = count_visits(root)
    assert 5 <= done < 18
    subprocess.run(command, cwd=ROOT, check=True, timeout=200)
    check(root)
    assert outcome(root) == outcome(oracle)
    assert not (root / "hops").exists()
