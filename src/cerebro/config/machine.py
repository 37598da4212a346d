"""How many workers fit this machine. Imports no framework."""

from __future__ import annotations

import os

from cerebro.run.devices import count_gpus


def default_workers(device: str, threads: int) -> int:
    """One worker for each GPU where they train, else for each `threads` cores.

    >>> default_workers("cpu", 10_000)
    1
    """
    if device.startswith("cuda:"):
        return 1
    gpus = count_gpus() if device in ("auto", "cuda") else 0
    return gpus or max(1, available_cores() // threads)


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
