"""The same result on Ray as anywhere else, on one machine or several nodes, whatever joins."""

from __future__ import annotations

import os

import pytest

from cerebro import Experiment, Result
from cerebro.backend import RayBackend
from cerebro.data import digits, from_arrays
from cerebro.errors import UsageError
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from cerebro.testing.toy import ToyTask
from tests.cluster.ganging import Accompanied
from tests.cluster.rays import connected, nodes
from tests.experiments import make_toy_data, outcome
from tests.tasks import Net

pytestmark = [pytest.mark.ray, pytest.mark.timeout(900)]

SPACE = {"lr": [0.1, 0.01], "width": [16, 24], "batch_size": 32}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ray")
    data = {name: column[:600] for name, column in digits().items()}
    from_arrays(folder / "data", train=data, shards=3, validation=0.2)
    return folder


@pytest.fixture(scope="module")
def cluster():
    """A head, and two nodes with room for one worker each."""
    with nodes(1, 1) as found:
        yield found


def run(home, name, backend, task=None, space=SPACE, workers=2, **options):
    experiment = Experiment(
        name=name, data=home / "data", store=home / "runs", backend=backend, workers=workers, seed=5
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


def test_ray_on_this_machine_gives_the_digest_of_the_inline_backend(home, oracle):
    root = run(home, "ray", "ray", Accompanied(home / "runs/ray/logs", 2))
    assert outcome(root) == outcome(oracle)
    assert sorted(path.name for path in (root / "logs").iterdir()) == [
        "worker-0.log",
        "worker-1.log",
    ]


def test_several_nodes_give_the_digest_of_the_inline_backend(home, oracle, cluster):
    root = run(home, "nodes", f"ray:{cluster.address}")
    assert outcome(root) == outcome(oracle)


def test_more_nodes_than_the_goal_allows_are_refused_before_the_run(home, cluster):
    backend = RayBackend(address=cluster.address)
    asked = {"device": "cpu", "goal": {"target": 0.0, "devices": "cpu", "max_nodes": 1}}
    with pytest.raises(UsageError, match=r"got 2 nodes and max_nodes=1\. Change the number of w"):
        run(home, "many", backend, **asked)
    assert not (home / "runs" / "many").exists()
    asked["goal"]["max_nodes"] = 2
    run(home, "allowed", backend, **asked)


def test_stacks_hop_on_ray_as_anywhere_else(home, cluster):
    run(home, "stacked", "inline", stack=4)
    with connected(cluster.address):
        root = run(home, "stacked-ray", RayBackend(), stack=4)
    assert Result.open(root).digest() == Result.open(home / "runs/stacked").digest()


def test_workers_of_a_node_that_joins_later_are_used(tmp_path, cluster):
    make_toy_data(tmp_path / "data", shards=3)
    space = {"lr": [0.5, 0.05, 0.02, 0.005], "batch_size": 16}
    oracle = run(tmp_path, "oracle", "inline", ToyTask(), space)
    backend = Growing(cluster, tmp_path / "hold0", after=3)
    task = ToyTask(hold=str(tmp_path / "hold"))
    root = run(tmp_path, "grown", backend, task, space, workers=None)
    cluster.remove(backend.added)
    assert outcome(root) == outcome(oracle)
    assert {record["worker"] for record in visits(root)} == {0, 1, 2}


class Growing(RayBackend):
    """Gets another node once so many visits were submitted; none ends until it has one, too."""

    def __init__(self, cluster, hold, *, after):
        super().__init__(address=cluster.address)
        self.cluster, self.hold, self.after, self.submitted = cluster, hold, after, 0

    def submit(self, worker, call, source, *, consume=False):
        super().submit(worker, call, source, consume=consume)
        self.submitted += 1
        if self.submitted == self.after:
            self.hold.touch()
            self.added = self.cluster.add(cpus=1)
        if worker == 2 and call.is_training:
            self.hold.unlink(missing_ok=True)


@pytest.mark.skipif(os.geteuid() != 0, reason="hides a folder from a node, which needs root")
def test_a_node_that_does_not_see_the_driver_s_files_gives_the_same(tmp_path, caplog):
    make_toy_data(tmp_path / "data", shards=3)
    space = {"lr": [0.5, 0.05], "batch_size": 16}
    oracle = run(tmp_path, "oracle", "inline", ToyTask(), space)
    with nodes() as cluster, connected(cluster.address):
        cluster.add_blind(tmp_path)
        root = run(tmp_path, "blind", RayBackend(num_workers=1), ToyTask(), space, workers=None)
    assert outcome(root) == outcome(oracle)
    assert "A store that all nodes see is faster" in caplog.text
    assert not list(root.glob(".probe-*"))
