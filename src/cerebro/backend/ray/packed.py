"""What a worker opens, as it travelled: only the process that does the work looks inside."""

from __future__ import annotations

import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, replace

from cerebro.backend.base import Opening, Runner, Setup
from cerebro.backend.ray.places import redirected
from cerebro.data import cache
from cerebro.storage.remote_relay import connect
from cerebro.train.gang.place import GangPlace


@dataclass(frozen=True, slots=True)
class Packed:
    """An opening in bytes that came over Ray's own channels, with what it needs around it."""

    content: bytes
    threads: int
    environment: Mapping[str, str]
    #: What copies of shards may take on a machine.
    cache_bytes: int
    #: Where to ask for files that are not seen here: a socket and its key.
    relay: tuple[str, bytes] | None = None
    #: Names of places that are not seen here.
    unseen: frozenset[str] = frozenset()
    #: Where the ranks of its gang meet, if it is opened by one.
    gang: GangPlace | None = None

    @property
    def task(self) -> object:
        return None

    def open(self, worker: int) -> Runner:
        return self.unpack().open(worker)

    def unpack(self) -> Opening:
        """What is inside, for this process."""
        for name, value in self.environment.items():
            # What the node was set up with counts more.
            os.environ.setdefault(name, value)
        cache.limit(self.cache_bytes)
        opening: Opening = pickle.loads(self.content)  # noqa: S301
        if self.relay is not None:
            connect(*self.relay)
            opening = redirected(opening, self.unseen)
        if self.gang is not None and isinstance(opening, Setup):
            opening = replace(opening, gang=self.gang)
        return opening
