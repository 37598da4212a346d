"""A run's place, seen from the command line."""

from __future__ import annotations

import os

from cerebro.errors import UsageError
from cerebro.steering import find_driver
from cerebro.storage import DirectoryStore, Store, layout, open_store


def open_directory(path: str) -> Store:
    """The store of a run, which has begun or is about to; an error names runs near by."""
    store = open_store(path)
    if isinstance(store, DirectoryStore) and os.path.isfile(store.root):
        raise UsageError(f"a run is a directory, but {path} is a file: give <store>/<name>.")
    if store.exists(layout.RUN) or is_starting(store):
        return store
    found = [name for name in store.list() if _is_run(store, name)]
    hint = f" Runs in it: {', '.join(found[:10])}." if found else ""
    raise UsageError(f"a run's directory must have a {layout.RUN}, but {path} has none.{hint}")


def is_starting(store: Store) -> bool:
    """Whether a driver is there, but its first worker is not yet."""
    return not store.exists(layout.RUN) and find_driver(store) is not None


def _is_run(store: Store, name: str) -> bool:
    try:
        return store.exists(f"{name}/{layout.RUN}")
    except UsageError:  # no name of ours, or a link that leads elsewhere
        return False
