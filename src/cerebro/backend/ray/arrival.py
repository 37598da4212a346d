"""What an actor finds on its node, and what the processes it starts there open."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from cerebro.backend.ray.orders import Charter, Handle
from cerebro.backend.ray.packed import Packed
from cerebro.backend.ray.relay import Outlet
from cerebro.train.gang.place import GangPlace


def find_unseen(charter: Charter) -> frozenset[str]:
    """Names of places that are not here what they are for the driver."""
    return frozenset(name for name, place in charter.places.items() if not place.is_seen())


class Doorstep:
    """Where processes of one actor come from: they share its way to the driver's files."""

    def __init__(self) -> None:
        self._outlet: Outlet | None = None

    def prepare(
        self,
        charter: Charter,
        unseen: frozenset[str],
        relay: Handle | None,
        gang: GangPlace | None = None,
    ) -> Packed:
        """What a process of this actor opens: as a rank of a gang, if that is given."""
        if is_near(charter):
            sys.path += [path for path in charter.paths if path not in sys.path]
        return Packed(
            charter.opening,
            charter.threads,
            charter.environment,
            charter.cache_bytes,
            self._way(relay) if unseen else None,
            unseen,
            gang,
        )

    def _way(self, relay: Handle | None) -> tuple[str, bytes]:
        if self._outlet is None:
            self._outlet = Outlet(relay)
        return self._outlet.address, self._outlet.key


def is_near(charter: Charter) -> bool:
    """Whether this is the driver's machine."""
    return charter.machine == this_machine()


def log_dir_of(charter: Charter) -> str | None:
    """Where the output of processes goes on the driver's machine; else it is Ray's to keep."""
    if charter.log_dir is None or not is_near(charter):
        return None
    try:
        os.makedirs(charter.log_dir, exist_ok=True)
    except OSError:
        return None
    return charter.log_dir if os.access(charter.log_dir, os.W_OK) else None


def this_machine() -> str:
    """Tells machines, and containers, from each other."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = ""
    return f"{socket.gethostname()} {boot}"
