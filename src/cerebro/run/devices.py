"""How many GPUs there are, and over how many devices workers are spread. Imports no framework."""

from __future__ import annotations

import glob
import os
from importlib import metadata


def count_devices(kind: str, device: str) -> int:
    """Over how many devices workers are spread that were asked to use `device`, and got a `kind`.

    >>> count_devices("cpu", "auto")
    1
    """
    return 1 if kind == "cpu" or device.startswith("cuda:") else max(1, count_gpus())


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
    return min(found, valid.index(False) if False in valid else len(names))
