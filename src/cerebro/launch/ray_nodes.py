"""How many nodes a Ray cluster has, as Ray itself says."""

from __future__ import annotations

import logging
import signal
import time

import ray

_LOOK_S = 0.5


def count_nodes(address: str, wanted: int, timeout_s: float) -> int:
    """How many nodes are alive once there are as many as wanted, or after so long.

    ConnectionError if there is no cluster at the address by then.
    """
    deadline = time.monotonic() + timeout_s
    _connect(address, deadline)
    try:
        while True:
            found = sum(bool(node["Alive"]) for node in ray.nodes())
            if found >= wanted or time.monotonic() > deadline:
                return found
            time.sleep(_LOOK_S)
    finally:
        ray.shutdown()


def _connect(address: str, deadline: float) -> None:
    # Ray takes the signal for itself.
    handler = signal.getsignal(signal.SIGTERM)
    while True:
        try:
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
            return
        except ConnectionError:
            if time.monotonic() > deadline:
                raise
            time.sleep(_LOOK_S)
        finally:
            signal.signal(signal.SIGTERM, handler)
