"""The actor that stands for a worker: it looks after a process, hands it states, and saves them."""

from __future__ import annotations

import os
import socket
import threading
from dataclasses import replace
from typing import Any

from cerebro.backend.ray.arrival import Doorstep, find_unseen, log_dir_of
from cerebro.backend.ray.cluster import in_group, this_address, this_node
from cerebro.backend.ray.objects import as_bytes, as_object
from cerebro.backend.ray.orders import (
    Answer,
    Blind,
    Charter,
    Commit,
    Ended,
    Handle,
    Order,
    Placed,
    Present,
    Refused,
)
from cerebro.backend.ray.places import STORE, lacks_files
from cerebro.backend.ray.relay import commit
from cerebro.backend.ray.spot import Spot
from cerebro.backend.ray.station import Station
from cerebro.errors import CerebroError, WorkerError
from cerebro.storage.checkpoint import CheckpointRef


class RayWorker:
    """One worker. Calls of different concurrency groups run side by side, each in its thread.

    Args:
        index: Its number in the run.
        is_leading: Whether its process is the leader of a gang.
    """

    def __init__(self, index: int, is_leading: bool = False) -> None:
        self._index = index
        self._spot = Spot(this_address()) if is_leading else None
        self._doorstep = Doorstep()
        self._station: Station | None = None
        self._sees_store = False
        #: Held while it looks around, which leaves files behind if it is killed meanwhile, and
        #: until there is something to close.
        self._opening = threading.Lock()
        self._is_closed = False

    def place(self) -> Placed:
        """Where it is."""
        address = "" if self._spot is None else self._spot.address
        return Placed(this_node(), socket.gethostname(), os.getpid(), address)

    def join(self, charter: Charter, relay: Handle | None = None) -> Present | Refused | Blind:
        """Wait until its process is ready; the first call starts one."""
        try:
            with self._opening:
                if self._is_closed:
                    return Refused(WorkerError("the worker was stopped."))
                if self._station is None:
                    unseen = find_unseen(charter)
                    if unseen and not charter.is_relayable:
                        return Refused(lacks_files(), is_of_node=True)
                    if unseen and relay is None:
                        return Blind(socket.gethostname())
                    self._sees_store = STORE in charter.places and STORE not in unseen
                    self._station = self._open(charter, unseen, relay)
            info, life = self._station.join()
        except CerebroError as error:
            return Refused(error)
        except Exception as error:
            return Refused(WorkerError(f"a worker cannot start: {error!r}"))
        return Present(info, life, self._sees_store)

    def run(self, order: Order, state: Any = None) -> tuple[Answer, Any]:
        """Carry out an order; beside the answer the state that it leaves."""
        if self._station is None:
            raise WorkerError("join() comes first.")
        content = None
        if state is not None and order.source is not None:
            content = as_bytes(state, order.source.bytes)
        answer, left = self._station.run(order, content)
        return answer, None if left is None else as_object(left)

    @in_group("watch")
    def watch(self, life: int) -> Ended:
        """Wait until that process has ended."""
        if self._station is None:
            raise WorkerError("join() comes first.")
        return self._station.watch(life)

    @in_group("save")
    def save(self, order: Commit, state: Any) -> CheckpointRef | CerebroError:
        """Write a state into the store; returns once it is durable."""
        return commit(order, state)

    @in_group("light")
    def ping(self) -> None:
        """A sign of life."""

    @in_group("light")
    def close(self) -> None:
        """End its process; returns when that is gone."""
        with self._opening:
            self._is_closed = True
        if self._station is not None:
            self._station.close()

    def _open(self, charter: Charter, unseen: frozenset[str], relay: Handle | None) -> Station:
        gang = None
        if charter.gang is not None and self._spot is not None:
            gang = replace(charter.gang, local=1, address=self._spot.address)
        opening = self._doorstep.prepare(charter, unseen, relay, gang)
        return Station(self._index, opening, charter.limits, log_dir_of(charter))
