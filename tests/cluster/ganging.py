"""Tasks on Ray: they wait for company, and tell where their ranks are and what befalls them."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple

import psutil
import torch

from tests.processes import wait_for
from tests.tasks import Net


class Trace(NamedTuple):
    """Where one rank was."""

    #: The process that all others of a Ray node depend on.
    raylet: int
    is_leader: bool
    pid: int


class Accompanied(Net):
    """A `Net` that is trained when there are so many workers.

    Args:
        logs: The directory in which each has its log.
    """

    def __init__(self, logs: Path, workers: int) -> None:
        super().__init__()
        self.logs = logs
        self.workers = workers

    def loss(self, model, batch, params):
        if model.training:
            wait_for(lambda: len(list(self.logs.iterdir())) >= self.workers, "workers", 120)
        return super().loss(model, batch, params)


class GangNet(Net):
    """A `Net` whose ranks leave a trace.

    Args:
        traces: A directory for them.
        victim: What a follower kills in the middle of a training visit, once: "follower"
            (itself), its "agent", or its "node".
        gangs: How many have to be at work before any of them goes on.
    """

    def __init__(self, traces: Path | None = None, victim: str = "", gangs: int = 1) -> None:
        super().__init__()
        self.traces = traces
        self.victim = victim
        self.gangs = gangs
        self.batches = 0

    def loss(self, model, batch, params):
        if model.training and self.traces is not None:
            self.batches += 1
            agent = psutil.Process().parent()
            raylet = agent.parent()
            is_leader = "cerebro.backend.worker" in " ".join(psutil.Process().cmdline())
            (self.traces / f"{raylet.pid} {int(is_leader)} {os.getpid()}").touch()
            if self.batches == 1:
                wait_for(self._has_company, f"{self.gangs} gangs at work", timeout_s=120)
            if self.victim and not is_leader and self.batches == 10 and _is_first(self.traces):
                victims = {"follower": os.getpid(), "agent": agent.pid, "node": raylet.pid}
                os.kill(victims[self.victim], signal.SIGKILL)
        return super().loss(model, batch, params)

    def _has_company(self) -> bool:
        found = [] if self.traces is None else traces_in(self.traces)
        return len({trace.raylet for trace in found}) >= self.gangs


class DriftingNet(Net):
    """Forgets that its gradients have to be averaged: it makes its own steps."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if model.training:
            own = torch.optim.SGD(model.parameters(), lr=0.01)
            loss.backward()
            own.step()
            own.zero_grad()
            loss = super().loss(model, batch, params)
        return loss


def traces_in(folder: Path) -> list[Trace]:
    found = [path.name.split() for path in folder.iterdir() if path.name != "struck"]
    return [Trace(int(raylet), is_leader == "1", int(pid)) for raylet, is_leader, pid in found]


def _is_first(folder: Path) -> bool:
    try:
        (folder / "struck").touch(exist_ok=False)
    except FileExistsError:
        return False
    return True
