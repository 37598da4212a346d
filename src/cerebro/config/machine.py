"""How many workers a workspace wants, or fit this machine. Imports no framework."""

from __future__ import annotations

import os

from cerebro.run.devices import count_gpus
from cerebro.storage.workspace import find_workspace, read_settings


def default_workers(device: str, threads: int) -> int:
    """As `cerebro start --workers` said for this place, else one worker for each GPU or core.

    Where no GPU trains, each `threads` cores count as one.

    >>> default_workers("cpu", 10_000)
    1
    """
    workspace = find_workspace()
    chosen = None if workspace is None else read_settings(workspace).workers
    if chosen is not None:
        return chosen
    if device.startswith("cuda:"):
        return 1
    gpus = count_gpus() if device in ("auto", "cuda") else 0
    return gpus or max(1, available_cores() // threads)


def available_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
