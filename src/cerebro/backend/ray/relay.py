"""Files that only the driver's machine can reach, for nodes that do not see them.

One actor on that machine reads, in pieces that travel through the object store, and writes. On
each node that needs it an actor passes on what its process asks for, over a socket: a few pieces
at a time are under way, whatever is asked for.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Mapping, Sequence
from multiprocessing import AuthenticationError
from multiprocessing.connection import Listener
from typing import Any, cast

from cerebro.backend.ray.cluster import call, fetch
from cerebro.backend.ray.objects import as_bytes
from cerebro.backend.ray.orders import Commit, Handle
from cerebro.errors import CerebroError, StoreError
from cerebro.storage import Store, open_store
from cerebro.storage.checkpoint import CheckpointRef
from cerebro.storage.checkpoint import save as save_checkpoint
from cerebro.storage.objects import Entry
from cerebro.storage.remote_relay import new_address, serve


def commit(order: Commit, state: Any) -> CheckpointRef | CerebroError:
    """Write a state into the store; returns once it is durable."""
    try:
        return save_checkpoint(
            open_store(order.store),
            order.unit,
            visits=order.visits,
            attempt=order.attempt,
            data=as_bytes(state, order.state.bytes),
            meta=order.state.meta,
            parent=order.parent,
        )
    except CerebroError as error:
        return error


class RayRelay:
    """The actor on the driver's machine.

    Args:
        places: Name -> URL or path of what may be read and written.
    """

    def __init__(self, places: Mapping[str, str]) -> None:
        self._stores = {name: open_store(url) for name, url in places.items()}

    def save(self, order: Commit, state: Any) -> CheckpointRef | CerebroError:
        """Write a state that no other node can write."""
        return commit(order, state)

    def look(self, name: str) -> Entry | None:
        store, path = self._find(name)
        if not path or not store.exists(path):
            return None if path else Entry("", None)
        base = path.rpartition("/")[2]
        with contextlib.suppress(StoreError):
            if store.list(path):
                return Entry(base, None)
        return Entry(base, store.size(path))

    def list(self, name: str) -> Sequence[Entry]:
        store, path = self._find(name)
        try:
            names = store.list(path)
        except StoreError:
            return []
        found = (self.look(f"{name}/{each}") for each in names)
        return [entry for entry in found if entry is not None]

    def read(self, name: str, start: int, end: int) -> bytes:
        store, path = self._find(name)
        return store.read_from(path, start, end - start)

    def write(self, name: str, content: bytes) -> None:
        store, path = self._find(name)
        store.write(path, content)

    def remove(self, name: str) -> None:
        store, path = self._find(name)
        store.remove(path)

    def _find(self, name: str) -> tuple[Store, str]:
        place, _, path = name.partition("/")
        return self._stores[place], path


class _Far:
    """The relay as a node's actor reaches it; errors come as they were there."""

    def __init__(self, relay: Handle) -> None:
        self._relay = relay

    def look(self, name: str) -> Entry | None:
        return cast("Entry | None", self._ask("look", name))

    def list(self, name: str) -> Sequence[Entry]:
        return cast("Sequence[Entry]", self._ask("list", name))

    def read(self, name: str, start: int, end: int) -> bytes:
        return cast(bytes, self._ask("read", name, start, end))

    def write(self, name: str, content: bytes) -> None:
        self._ask("write", name, content)

    def remove(self, name: str) -> None:
        self._ask("remove", name)

    def _ask(self, method: str, *given: object) -> object:
        return fetch(call(self._relay, method, *given))


class Outlet:
    """On a node: a socket at which a process of this machine asks for files of the driver's."""

    def __init__(self, relay: Handle) -> None:
        self._source = _Far(relay)
        self.address = new_address()
        self.key = secrets.token_bytes(32)
        self._listener = Listener(self.address, family="AF_UNIX", authkey=self.key)
        threading.Thread(target=self._accept, name="cerebro-outlet", daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                connection = self._listener.accept()
            except (OSError, EOFError, AuthenticationError):
                # Whoever came was not our process.
                continue
            arguments = (connection, self._source)
            threading.Thread(target=serve, args=arguments, daemon=True).start()
