"""Bulk work on Ray: preparing, testing and predicting give the bytes of the inline backend."""

from __future__ import annotations

import os

import pytest
import ray

from cerebro import Experiment
from cerebro.backend import RayBackend
from cerebro.backend.limits import Limits
from cerebro.errors import UsageError
from cerebro.testing.toy import ToyTask
from cerebro.train.score.calls import ScoreMode
from tests.cluster.rays import connected, nodes, only
from tests.etl import content, prepare, raw_of
from tests.experiments import outcome
from tests.scored import answer, ask, files, trained_run

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

FIXED = {"num_epochs": 1, "metric": "val_loss", "mode": "min", "progress": False, "stack": False}
SPACE = {"lr": [0.5, 0.05], "batch_size": 16}
ROWS = raw_of(range(40))
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounts something, which needs root")


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    """A finished run, what it tests and predicts on one process, and raw rows prepared there."""
    folder = tmp_path_factory.mktemp("ray")
    root = trained_run(folder)
    for mode in ScoreMode:
        answer(ask(root, mode), folder / str(mode))
    prepare(folder / "prepared", ROWS, shards=4)
    return folder


@pytest.fixture(scope="module")
def cluster():
    """A head without room for workers, to which this process is connected."""
    with nodes() as found, connected(found.address):
        yield found


def make(home, name, backend):
    return Experiment(name=name, data=home / "data", store=home / "runs", backend=backend)


def test_an_experiment_trains_tests_and_predicts_in_a_placement_group(home, cluster):
    oracle = make(home, "oracle", "inline")
    oracle.run_fit(ToyTask(), SPACE, **FIXED)
    with only(cluster, cpus=4):
        # All cores are in it: outside there is room for nobody.
        group = ray.util.placement_group([{"CPU": 2}, {"CPU": 2}])
        backend = RayBackend(
            placement_group=group, resources_per_worker={"CPU": 2}, limits=Limits(start_s=240)
        )
        assert backend.num_workers == 2
        experiment = make(home, "group", backend)
        experiment.run_fit(ToyTask(), SPACE, **FIXED)
        tested = experiment.run_test(ToyTask(), progress=False)
        predicted = experiment.run_predict(ToyTask(), progress=False)
        ray.util.remove_placement_group(group)
    assert outcome(home / "runs/group") == outcome(home / "runs/oracle")
    assert tested.metrics == oracle.run_test(ToyTask(), progress=False).metrics
    assert predicted.rows == 53


def test_rows_are_prepared_on_ray_as_in_one_process(home, cluster, tmp_path):
    with only(cluster, cpus=2):
        backend = RayBackend(num_workers=2)
        prepare(tmp_path / "data", ROWS, backend=backend, workers=2, shards=4)
    assert content(tmp_path / "data") == content(home / "prepared")
    assert not list((tmp_path / "data").glob(".probe*"))


@needs_root
def test_a_node_that_sees_nothing_tests_and_predicts_all_the_same(home, cluster):
    with only(cluster, blind=home):
        for mode in ScoreMode:
            answer(ask(home / "run", mode), home / f"{mode}-blindly", backend=RayBackend())
        with pytest.raises(UsageError, match="only be done by nodes that see the store"):
            prepare(home / "blindly", ROWS, backend=RayBackend(num_workers=1))
        seeing = cluster.add()
        backend = RayBackend(num_workers=2)
        prepare(home / "seen", ROWS, backend=backend, workers=2, shards=4)
        cluster.remove(seeing)
    for mode in ScoreMode:
        assert files(home / f"{mode}-blindly") == files(home / str(mode))
    assert content(home / "seen") == content(home / "prepared")


@needs_root
def test_a_node_that_cannot_write_predicts_by_the_relay(home, cluster):
    with only(cluster, reading=home):
        answer(ask(home / "run"), home / "read-only", backend=RayBackend(num_workers=1))
    assert files(home / "read-only") == files(home / "predict")
