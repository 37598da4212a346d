"""States on their way through the store, from the task that made them to the next."""

from __future__ import annotations

import contextlib
import hashlib
import mmap
from collections.abc import Mapping
from dataclasses import dataclass

from cerebro.errors import CheckpointCorruptError, StoreError
from cerebro.storage import Store
from cerebro.storage.layout import HOPS
from cerebro.train.visit import State
from cerebro.types import Json


@dataclass(frozen=True, slots=True)
class Hop:
    """A state in a file of the run's store."""

    path: str
    bytes: int
    sha256: str
    meta: Mapping[str, Json]


def write_hop(store: Store, name: str, state: State) -> Hop:
    """Put a state where the next visit finds it; durable, so that it can become a checkpoint."""
    path = f"{HOPS}/{name}"
    store.write(path, state.buffer)
    digest = hashlib.sha256(state.buffer).hexdigest()
    return Hop(path, state.buffer.nbytes, digest, state.meta)


def read_hop(store: Store, hop: Hop) -> State:
    """The state, in memory of its own that a visit may train in."""
    buffer = new_buffer(hop.bytes)
    size = store.read_into(hop.path, buffer)
    if size != hop.bytes or hashlib.sha256(buffer).hexdigest() != hop.sha256:
        raise CheckpointCorruptError(
            f"the state {hop.path} in {store.url} is damaged: it must have {hop.bytes} bytes with "
            f"SHA-256 {hop.sha256}, but has others. The same command goes on from the last "
            "checkpoint."
        )
    return State(buffer, hop.meta)


def new_buffer(size: int) -> memoryview:
    """Page-aligned like a slot of shared memory: alignment may decide the last bit of a sum."""
    return memoryview(mmap.mmap(-1, max(1, size)))[:size]


def sweep(store: Store) -> None:
    """Remove all states on their way. Only for the process that holds the run's lock."""
    for name in store.list(HOPS):
        store.remove(f"{HOPS}/{name}")
    # Object stores have no directories, and a task that is being cancelled may still write.
    with contextlib.suppress(StoreError):
        store.remove(HOPS)
