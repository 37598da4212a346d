"""A task for gangs of processes, of which one does what `params["fault"]` says, most often once.

A fault is its kind (kill, memory, hang, fail), after "leader" if it is the leader's and "always".
"""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
import torch
from torch import nn

from cerebro import Task
from cerebro.data import from_arrays


def make_home(folder: Path) -> Path:
    """Its data in a folder, and a directory for what befalls ranks."""
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    from_arrays(folder / "data", {"x": x, "y": x.argmax(1)}, shards=2, validation=1 / 3)
    (folder / "faults").mkdir()
    return folder


class GangTask(Task):
    """A small network.

    Args:
        once: A directory; a fault strikes if it can make its file there, so once.
        leader: The leader's process, or if `is_parent` the one that has started it.
    """

    def __init__(self, once: str = "", leader: int = 0, *, is_parent: bool = False) -> None:
        self.once = once
        self.leader = leader
        self.is_parent = is_parent

    def model(self, params):
        return nn.Sequential(nn.Linear(3, 8), nn.ReLU(), nn.Linear(8, 3))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=params["lr"], momentum=0.9)

    def loss(self, model, batch, params):
        if model.training and self._is_struck(params.get("fault", "")):
            self._strike(params["fault"])
        return nn.functional.cross_entropy(model(batch["x"]), batch["y"])

    def metrics(self, model, batch, params):
        return {"accuracy": (model(batch["x"]).argmax(1) == batch["y"]).float().mean()}

    def _is_struck(self, fault: str) -> bool:
        is_leader = self.leader == (os.getppid() if self.is_parent else os.getpid())
        if not fault or is_leader != fault.startswith("leader"):
            return False
        if "always" in fault:
            return True
        try:
            Path(self.once, fault).touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def _strike(self, fault: str) -> None:
        kind = fault.split()[-1]
        if kind == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif kind == "memory":
            raise MemoryError
        elif kind == "hang":
            time.sleep(3600)
        raise ValueError("no such luck")
