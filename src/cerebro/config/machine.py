"""How many workers fit this machine. Imports no framework."""

from __future__ import annotations

import glob
import os
from importlib import metadata


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


def count_gpus() -> int:
    """NVIDIA GPUs that PyTorch would see here; 0 where it is built for the CPU alone."""
    try:
        version = metadata.version("torch")
    except metadata.PackageNotFoundError:
        return 0
    if version.endswith("+cpu"):
        return 0
    found = len(glob.glob("/dev/nvidia[0-9]*"))
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None or not found:
        return found
    # What comes after an invalid one is not visible either.
    names = visible.split(",")
    valid = [name.strip() not in ("", "-1") for name in names]
    return valid.index(False) if False in valid else len(names)
