"""What every backend must do, on Ray."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cerebro.backend import Backend, RayBackend
from cerebro.testing.process_contract import ProcessBackendContract
from tests.cluster.rays import machine
from tests.processes import wait_for

pytestmark = pytest.mark.ray


@pytest.fixture(autouse=True, scope="module")
def ray():
    with machine(cpus=4):
        yield


class TestRayBackend(ProcessBackendContract):
    def make(self) -> Backend:
        return RayBackend(num_workers=1)

    def test_nothing_stays_open(self, tmp_path: Path) -> None:
        """Ray keeps its connections to actors that are gone for a while; they are not ours."""
        with self.session(tmp_path):
            pass
        before = open_files()
        for number in range(3):
            with self.session(tmp_path / str(number)):
                pass
            self.make()
        # Threads of Ray's open and close some at any time.
        wait_for(lambda: open_files() <= before, "as many open files as before")


def open_files() -> int:
    """Files and pipes of this process that are no sockets."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        try:
            count += not os.readlink(f"/proc/self/fd/{name}").startswith("socket:")
        except FileNotFoundError:
            continue
    return count
