from __future__ import annotations

import concurrent.futures
import signal
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from cerebro.backend.gang import muster
from cerebro.backend.gang.muster import Muster
from cerebro.backend.gang.rendezvous import Kind, read_flags
from cerebro.backend.gang.seek import find_muster
from cerebro.errors import DiskFullError, UsageError
from cerebro.launch.allocation import drive, read_place, run_over_nodes
from cerebro.launch.ray_node import read_resources
from tests.ports import free_port

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


def test_a_node_that_comes_later_hears_that_the_disk_of_the_first_is_full(handlers, monkeypatch):
    """Its code is that of a run which was asked to stop, but nobody has asked the others."""
    address = f"127.0.0.1:{free_port()}"
    flags = [read_flags(nodes=2, procs=1, node=n, master=address) for n in range(2)]
    first, second = (replace(spot, kind=Kind.SLURM) for spot in flags)
    ahead_s = 0.0
    heard = []

    def follow():
        with find_muster(second, "toy", lambda: None) as post:
            return post.hear(60.0)

    def work():
        raise DiskFullError("no space left.")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:

        def sleep(seconds):
            nonlocal ahead_s
            ahead_s += 1.0
            if ahead_s == 2.0:
                heard.append(pool.submit(follow))
            time.sleep(seconds)

        clock = SimpleNamespace(monotonic=lambda: min(ahead_s, 2.0), sleep=sleep)
        monkeypatch.setattr(muster, "time", clock)
        with pytest.raises(DiskFullError):
            drive(work, Muster(first, "toy"))
        assert [each.result()["done"] for each in heard] == [75]
