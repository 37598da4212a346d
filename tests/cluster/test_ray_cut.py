"""Ray over several machines whose network is cut: the same result, and nobody comes in unasked."""

from __future__ import annotations

import secrets
import time

import pytest

from cerebro.testing.history import check
from tests.cluster.apart import Apart
from tests.cluster.namespaces import machines, why_not
from tests.experiments import fast_folder, fit_toy, make_toy_data, outcome, toy_spec
from tests.processes import ROOT, driving, hold, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.chaos,
    pytest.mark.skipif(why_not() is not None, reason=str(why_not())),
    pytest.mark.timeout(900),
]

SPACE = {"lr": [0.5, 0.05, 0.005]}
EPOCHS, SHARDS = 4, 4
VISITS = len(SPACE["lr"]) * EPOCHS * SHARDS
#: Longer than Ray takes to give up a node, and than it takes all others to go on without.
PATIENCE_S = 240.0
#: Shorter than that.
BLINK_S = 2.0


@pytest.fixture(scope="module")
def hosts():
    with machines(["r0", "r1", "r2"], "10.80.0") as found:
        yield found


@pytest.fixture(scope="module")
def home():
    """The data, and what a run that is left alone makes of it."""
    with fast_folder() as path:
        make_toy_data(path / "data", shards=SHARDS)
        fit_toy(path / "oracle", toy_spec(path / "data", SPACE, epochs=EPOCHS))
        yield path


@pytest.fixture(scope="module")
def cluster(tmp_path_factory, hosts):
    """A head, and a node that stays."""
    found = Apart(tmp_path_factory.mktemp("apart"), hosts[0])
    with found.running(), found.node(hosts[1]):
        yield found


def options_for(home, folder, cluster, visit_s=0.1):
    return {
        "task": "toy",
        "task_options": {
            "log": str(folder / "visits"),
            "hold": str(folder / "hold"),
            "visit_s": visit_s,
        },
        "fit": {
            "space": SPACE,
            "num_epochs": EPOCHS,
            "batch_size": 16,
            "metric": "val_loss",
            "mode": "min",
            "stack": False,
        },
        "experiment": {
            "name": "run",
            "data": str(home / "data"),
            "store": str(folder / "runs"),
            "backend": f"ray:{cluster.address}",
            "workers": 2,
        },
    }


def on_head(cluster, options, folder, environment=None):
    """A driver there, whose program is in a folder of its own."""
    given = {**(environment or cluster.environment), "PYTHONPATH": str(ROOT)}
    (folder / "program").mkdir()
    how = {"prefix": cluster.head.command(), "folder": folder / "program", "environment": given}
    return driving(options, folder / "output.txt", **how)


@pytest.fixture
def link(hosts):
    """That of the node which is cut off; whole in the end."""
    yield hosts[2]
    hosts[2].mend()


def test_a_run_goes_on_without_a_node_that_is_cut_off(home, cluster, link, tmp_path):
    options = options_for(home, tmp_path, cluster)
    gate = hold(tmp_path, 0)
    with cluster.node(link), on_head(cluster, options, tmp_path) as driver:
        wait_for_both(driver, tmp_path, 0)
        link.cut()
        gate.unlink()
        assert driver.wait(PATIENCE_S) == 0, driver.said()
    assert_exact(home, driver.root, tmp_path)


def test_a_node_that_was_cut_off_for_a_while_does_no_harm_when_it_is_back(
    home, cluster, link, tmp_path
):
    # There is work left when it is back.
    options = options_for(home, tmp_path, cluster, visit_s=0.5)
    gates = [hold(tmp_path, epoch) for epoch in (0, 1)]
    with cluster.node(link), on_head(cluster, options, tmp_path) as driver:
        wait_for_both(driver, tmp_path, 0)
        # So shortly that nobody notices.
        link.cut()
        time.sleep(BLINK_S)  # the length of the cut, not a wait
        link.mend()
        gates[0].unlink()
        wait_for_both(driver, tmp_path, 1)
        # So long that it is given up, with what it was at.
        moved = count_moved(tmp_path)
        link.cut()
        gates[1].unlink()
        wait_for(
            lambda: count_moved(tmp_path) > moved, f"a moved visit: {driver.said()}", PATIENCE_S
        )
        link.mend()
        assert driver.wait(PATIENCE_S) == 0, driver.said()
    assert_exact(home, driver.root, tmp_path)


def wait_for_both(driver, folder, epoch):
    """Until both workers have begun visits of an epoch, which is held."""
    wait_for(
        lambda: (
            len({line[-1] for line in begun_in(folder) if int(line[1]) == epoch}) == 2
            or driver.has_ended()
        ),
        f"visits of two workers; it said: {driver.said()}",
        PATIENCE_S,
    )
    assert not driver.has_ended(), driver.said()


def assert_exact(home, root, folder):
    assert outcome(root) == outcome(home / "oracle")
    check(root)
    # The visits in flight, and of each trial one that was done and not durable.
    lost = 2 + len(SPACE["lr"])
    assert VISITS <= len(begun_in(folder)) <= VISITS + lost


def begun_in(folder):
    """(trial, epoch, step, attempt, process) of visits so far."""
    log = folder / "visits"
    return [tuple(line.split()) for line in log.read_text().splitlines()] if log.exists() else []


def count_moved(folder):
    """How many visits were begun again."""
    return sum(int(attempt) > 0 for _, _, _, attempt, _ in begun_in(folder))


def test_a_driver_with_another_token_is_refused_and_told_so(home, cluster, tmp_path):
    wrong = secrets.token_hex(32)
    # Ray asks 20 times, a second apart, before it believes it. Some of them may come to nothing on
    # a busy machine; what counts is how the last one ends.
    environment = {**cluster.environment_with(wrong, "wrong"), "RAY_NUM_REDIS_GET_RETRIES": "8"}
    options = options_for(home, tmp_path, cluster)
    with on_head(cluster, options, tmp_path, environment) as driver:
        assert driver.wait(PATIENCE_S) > 0
    said = driver.said()
    assert f"WorkerError: Ray must answer at {cluster.address}, but asks for a token" in said
    assert wrong not in said
    assert cluster.token not in said
    assert not driver.root.exists()
