"""The store that torchrun keeps at MASTER_ADDR:MASTER_PORT: rank 0 publishes there where it is."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from cerebro.backend.gang.rendezvous import Rendezvous, split_address
from cerebro.errors import UsageError


def publish(rendezvous: Rendezvous, run: str, address: str) -> None:
    """Let the other ranks of this start find an address."""
    import torch.distributed as dist

    try:
        _connect(rendezvous, timedelta(seconds=30)).set(_key(rendezvous, run), address)
    except (dist.DistError, RuntimeError) as error:
        raise UsageError(
            f"torchrun must keep a store at {rendezvous.address}, but it cannot be reached "
            f"({error}). Start every node with the same --rdzv-endpoint or --master-addr."
        ) from error


def look_up(rendezvous: Rendezvous, run: str, timeout_s: float) -> str | None:
    """Where rank 0 is; None if it has not come yet."""
    import torch.distributed as dist

    limit = timedelta(seconds=timeout_s)
    try:
        store = _connect(rendezvous, limit)
        store.wait([_key(rendezvous, run)], limit)
        return bytes(store.get(_key(rendezvous, run))).decode()
    except (dist.DistError, RuntimeError):
        return None


def _connect(rendezvous: Rendezvous, timeout: timedelta) -> Any:
    import torch.distributed as dist

    host, port = split_address(rendezvous.address)
    store = dist.TCPStore  # type: ignore[attr-defined]
    return store(host, port, is_master=False, timeout=timeout)


def _key(rendezvous: Rendezvous, run: str) -> str:
    return f"cerebro/{rendezvous.key}/{run}"
