from __future__ import annotations

import signal

import pytest

from cerebro.errors import UsageError
from cerebro.launch.allocation import read_place, run_over_nodes
from cerebro.launch.ray_node import read_resources

STEP = {
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "1",
    "SLURM_LOCALID": "0",
    "SLURM_NTASKS": "2",
    "SLURM_JOB_NODELIST": "gpu-[07-08]",
    "RAY_AUTH_TOKEN": "0" * 64,
}


def test_a_task_knows_its_node_and_the_first():
    place = read_place(STEP)
    assert place is not None
    assert (place.first, place.world, place.is_leading) == (1, 2, False)
    assert place.address.startswith("gpu-07:")


def test_a_task_that_is_alone_needs_no_ray_beside_it():
    assert read_place({**STEP, "SLURM_NTASKS": "1", "SLURM_PROCID": "0"}) is None
    assert read_place({}) is None


def test_two_tasks_on_a_node_are_refused():
    with pytest.raises(UsageError, match=r"a node has one task.*--ntasks-per-node=1"):
        read_place({**STEP, "SLURM_LOCALID": "1"})


def test_nodes_must_share_a_token():
    without = {key: value for key, value in STEP.items() if key != "RAY_AUTH_TOKEN"}
    with pytest.raises(UsageError, match="RAY_AUTH_TOKEN is not set"):
        read_place(without)
    assert read_place({**without, "RAY_AUTH_MODE": "disabled"}) is not None


@pytest.mark.parametrize(
    ("environ", "options"),
    [
        ({}, []),
        ({"SLURM_CPUS_ON_NODE": "8"}, ["--num-cpus=8"]),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_CPUS_PER_TASK": "4"}, ["--num-cpus=4"]),
        ({"SLURM_GPUS_ON_NODE": "2"}, ["--num-gpus=2"]),
        ({"SLURM_CPUS_ON_NODE": "8(x2)"}, []),
    ],
    ids=["nothing", "node", "task", "gpus", "odd"],
)
def test_ray_is_told_what_slurm_has_given(environ, options):
    assert read_resources(environ) == options


@pytest.fixture
def handlers():
    """Those of this process are as they were."""
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    before = [signal.getsignal(number) for number in numbers]
    yield
    for number, handler in zip(numbers, before, strict=True):
        signal.signal(number, handler)


def test_one_node_just_runs(handlers):
    def count_nodes(address, wanted, timeout_s):
        raise AssertionError("there is nobody to wait for")

    assert run_over_nodes("toy", lambda: 75, count_nodes) == 75
