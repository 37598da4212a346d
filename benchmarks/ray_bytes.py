"""Which bytes move when trials hop between nodes of Ray: a case of the Ray benchmark.

    python -m benchmarks.ray_bytes WORK.json ...

A head that has no room for workers, on which the driver is, and two nodes with one worker each, all
on this machine. Each node's object store counts the bytes of objects that were made in it, copies
from other nodes among them: that is what is reported. A state can reach the driver in two ways
only: as an object in the store of its node, or inside of an answer, over TCP. The first is
counted by that store, the second by the kernel for each socket of the process (`TCP_INFO`; what
/proc/PID/io counts as read leaves sockets out). Ends with one line of JSON, a list of `Moved`.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Self

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")

import torch

from benchmarks.ray_ours import fit
from benchmarks.ray_work import Work
from cerebro.storage import open_store
from cerebro.storage.journal import read

STORE_BYTES = 512 << 20
#: Where the kernel's struct tcp_info has tcpi_bytes_received, as 64 bits.
RECEIVED_AT = 128
SAMPLE_S = 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes that a run has moved."""

    #: Of one state, as its checkpoint has it, and how many were made.
    state: int
    visits: int
    #: Visits that began with a state of the other node.
    hops: int
    #: Objects of the nodes with workers, and their bytes.
    objects: int
    stored: int
    #: Objects' bytes on the driver's node, and bytes that came to its process over TCP.
    driver_stored: int
    driver_received: int

    @property
    def per_object(self) -> float:
        """Bytes of the store for each state made and each state moved."""
        return self.stored / (self.visits + self.hops)

    @property
    def driver_states(self) -> int:
        """Whole states that could have come to the driver in all that came there.

        >>> Moved(state=100, visits=3, hops=1, objects=4, stored=400, driver_stored=60,
        ...       driver_received=30).driver_states
        0
        """
        return (self.driver_stored + self.driver_received) // self.state


class Received:
    """Counts what comes in over TCP to this process; sockets that are closed count, too."""

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._before = 0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self.look()
        self._before = sum(self._last.values())
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._is_over.set()
        self._thread.join()
        self.look()

    @property
    def bytes(self) -> int:
        return sum(self._last.values()) - self._before

    def _watch(self) -> None:
        while not self._is_over.wait(SAMPLE_S):
            self.look()

    def look(self) -> None:
        """Take the counts as they are now."""
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                target = os.readlink(f"/proc/self/fd/{name}")
                if target.startswith("socket:"):
                    count = _received_by(int(name))
                    self._last[target] = max(count, self._last.get(target, 0))


def _received_by(descriptor: int) -> int:
    """Bytes that came over TCP; 0 for another kind of socket, or one that listens."""
    with socket.socket(fileno=os.dup(descriptor)) as found:
        if found.family not in (socket.AF_INET, socket.AF_INET6):
            return 0
        info = found.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    return int.from_bytes(info[RECEIVED_AT : RECEIVED_AT + 8], sys.byteorder)


def count_hops(visits: Sequence[Mapping[str, Any]]) -> int:
    """How often a trial went on at another worker than before.

    >>> count_hops([{"trial": 0, "worker": worker} for worker in (0, 0, 1)])
    1
    """
    last: dict[int, int] = {}
    hops = 0
    for visit in visits:
        trial, worker = visit["trial"], visit["worker"]
        hops += last.get(trial, worker) != worker
        last[trial] = worker
    return hops


@contextlib.contextmanager
def nodes() -> Iterator[Any]:
    """A cluster of three nodes that this process is connected to; ends with its processes."""
    import ray
    from ray.cluster_utils import Cluster

    # Short, for the sake of the sockets in it.
    folder = tempfile.mkdtemp(prefix="cr-", dir="/tmp")
    head = {"num_cpus": 0, "object_store_memory": STORE_BYTES, "temp_dir": folder}
    cluster = Cluster(initialize_head=True, head_node_args={**head, "include_dashboard": False})
    try:
        for _ in range(2):
            cluster.add_node(num_cpus=1, object_store_memory=STORE_BYTES)
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        yield ray
    finally:
        ray.shutdown()
        cluster.shutdown()
        shutil.rmtree(folder, ignore_errors=True)


def stored_by(ray: Any, *, by_driver: bool) -> tuple[int, int]:
    """Objects ever made in the stores of the driver's node, or of all others, and their bytes."""
    from ray._private.internal_api import node_stats

    here = ray.get_runtime_context().get_node_id()
    objects = size = 0
    for node in ray.nodes():
        if (node["NodeID"] == here) == by_driver:
            address, port = node["NodeManagerAddress"], node["NodeManagerPort"]
            stats = node_stats(address, port, include_memory_info=False).store_stats
            objects += stats.cumulative_created_objects
            size += stats.cumulative_created_bytes
    return objects, size


def measure(ray: Any, work: Work, folder: str) -> Moved:
    """Train all trials of the work on two nodes."""
    before = stored_by(ray, by_driver=False), stored_by(ray, by_driver=True)
    with Received() as received:
        result = fit(work, folder, "ray")
    after = stored_by(ray, by_driver=False), stored_by(ray, by_driver=True)
    records = read(open_store(result.path)).records
    visits: list[Any] = [record for record in records if record["type"] == "visit"]
    (state,) = {visit["checkpoint"]["bytes"] for visit in visits}
    return Moved(
        state=state,
        visits=len(visits),
        hops=count_hops(visits),
        objects=after[0][0] - before[0][0],
        stored=after[0][1] - before[0][1],
        driver_stored=after[1][1] - before[1][1],
        driver_received=received.bytes,
    )


def main(files: Sequence[str]) -> None:
    """One run after another, on the same nodes."""
    torch.set_num_threads(1)
    found = []
    with nodes() as ray:
        for file in files:
            with tempfile.TemporaryDirectory(prefix="cerebro-bytes-") as place:
                found.append(asdict(measure(ray, Work.load(Path(file)), place)))
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1:])
