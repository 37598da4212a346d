"""Gangs on Ray: the weights of the local backend, over several nodes, whatever is killed."""

from __future__ import annotations

from collections import Counter

import pytest

from cerebro import Experiment
from cerebro.backend import RayBackend
from cerebro.data import digits, from_arrays
from cerebro.errors import ReplicaError, UsageError
from cerebro.run.spec import read_document
from cerebro.storage import DirectoryStore
from cerebro.testing.history import check
from tests.cluster.ganging import DriftingNet, GangNet, traces_in
from tests.cluster.rays import nodes
from tests.experiments import outcome

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SPACE = {"lr": [0.1, 0.01], "width": [16]}
#: Two workers on each node.
HALF = {"CPU": 0.5}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("gangs")
    data = {name: column[:300] for name, column in digits().items()}
    from_arrays(folder / "data", train=data, shards=2, validation=0.2)
    return folder


@pytest.fixture(scope="module")
def cluster():
    """A head, and three nodes with a core each."""
    with nodes(1, 1, 1) as found:
        yield found


def run(home, name, backend, task=None, *, space=SPACE, workers=2, **options):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=workers, seed=5
    )
    experiment.run_fit(
        task or GangNet(),
        space,
        num_epochs=2,
        global_batch_size=32,
        metric="val_loss",
        mode="min",
        progress=False,
        **{"parallel": "ddp", **options},
    )
    check(home / "runs" / name)
    return home / "runs" / name


@pytest.fixture(scope="module")
def oracle(home):
    """A gang of two on this machine."""
    return run(home, "oracle", "local")


@pytest.fixture
def traces(tmp_path):
    (tmp_path / "traces").mkdir()
    return tmp_path / "traces"


def test_a_gang_over_two_nodes_gives_the_weights_of_one_on_this_machine(
    home, oracle, cluster, traces
):
    root = run(home, "ddp", f"ray:{cluster.address}", GangNet(traces))
    assert outcome(root) == outcome(oracle)
    first, second = traces_in(traces)
    assert first.raylet != second.raylet
    assert first.is_leader != second.is_leader


def test_gangs_that_are_to_have_a_machine_each_do_and_give_the_same_weights(
    home, oracle, cluster, traces
):
    backend = RayBackend(address=cluster.address, num_workers=4, resources_per_worker=HALF)
    options = {"parallel": "hybrid", "workers_per_trial": "host", "workers": None}
    root = run(home, "hybrid", backend, GangNet(traces, gangs=2), **options)
    assert outcome(root) == outcome(oracle)
    found = traces_in(traces)
    assert Counter(trace.is_leader for trace in found) == {True: 2, False: 2}
    gangs = Counter(trace.raylet for trace in found)
    assert sorted(gangs.values()) == [2, 2]


def test_replicas_that_drift_apart_on_ray_end_the_run(home, cluster):
    with pytest.raises(ReplicaError, match=r"model\.0\.weight of rank 1 differs"):
        run(home, "drift", f"ray:{cluster.address}", DriftingNet())


def test_one_trial_is_shared_on_ray_if_that_pays(home, cluster):
    space = {"lr": [0.1], "width": [16]}
    root = run(home, "auto", f"ray:{cluster.address}", space=space, parallel="auto")
    parallel = read_document(DirectoryStore(root)).spec["parallel"]
    assert parallel["cost"]["workers"] == 2
    assert parallel["mode"] in ("ddp", "mop")


def test_a_machine_is_no_measure_where_machines_differ(home, cluster):
    backend = RayBackend(address=cluster.address, num_workers=2)
    extra = cluster.add(cpus=2)
    try:
        with pytest.raises(UsageError, match="but got machines with 1 and 2"):
            run(home, "unequal", backend, parallel="hybrid", workers_per_trial="host", workers=None)
    finally:
        backend.stop()
        cluster.remove(extra)


# The one that loses a node comes last.
@pytest.mark.parametrize("victim", ["follower", "agent", "node"])
def test_a_gang_that_loses_a_rank_gives_the_same_weights(home, oracle, cluster, traces, victim):
    task = GangNet(traces, victim)
    root = run(home, f"killed-{victim}", f"ray:{cluster.address}", task)
    assert outcome(root) == outcome(oracle)
    assert (traces / "struck").exists()
    assert len(traces_in(traces)) > 2
