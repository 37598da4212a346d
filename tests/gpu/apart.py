"""Ranks that share a GPU, and pretend to be on machines of their own with a GPU each."""

from __future__ import annotations

import os
from typing import Any, cast

import torch

from tests.unit.backend.ganging import GangTask


def environment(host: object) -> dict[str, str]:
    """NCCL refuses two ranks with one GPU of one host."""
    return {"NCCL_HOSTID": str(host), "NCCL_SOCKET_IFNAME": "lo", "NCCL_IB_DISABLE": "1"}


class _OwnGpu:
    """Properties of a GPU that no other process has."""

    def __init__(self, properties: Any) -> None:
        self._properties = properties
        self.uuid = f"{properties.uuid}-{os.getpid()}"

    def __getattr__(self, name: str) -> Any:
        return getattr(self._properties, name)


class ApartTask(GangTask):
    """Whoever unpacks it pretends.

    Args:
        log: A directory in which NCCL says what it does, in a file for each process.
    """

    def __init__(self, once: str, leader: int, log: str) -> None:
        super().__init__(once, leader, is_parent=True)
        self.log = log

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        os.environ.update(environment(os.getpid()))
        os.environ.update(NCCL_DEBUG="INFO", NCCL_DEBUG_FILE=f"{self.log}/%p")
        found = torch.cuda.get_device_properties
        cast(Any, torch.cuda).get_device_properties = lambda *given: _OwnGpu(found(*given))

    def _strike(self, fault: str) -> None:
        if fault.endswith("index"):
            # It is told by whatever comes next.
            _ = torch.zeros(1, device="cuda")[torch.ones(1, device="cuda").long() * 7]
        else:
            super()._strike(fault)
