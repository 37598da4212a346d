"""A run's directory, seen from the command line."""

from __future__ import annotations

import os
from pathlib import Path

from cerebro.errors import UsageError
from cerebro.steering import find_driver
from cerebro.storage import LocalStore, layout


def open_directory(path: Path) -> LocalStore:
    """The store of a run, which has begun or is about to; an error names runs near by."""
    if path.exists() and not path.is_dir():
        raise UsageError(f"a run is a directory, but {path} is a file: give <store>/<name>.")
    store = LocalStore(path)
    if store.exists(layout.RUN) or is_starting(store):
        return store
    found = [name for name in store.list() if os.path.exists(path / name / layout.RUN)]
    hint = f" Runs in it: {', '.join(found[:10])}." if found else ""
    raise UsageError(f"a run's directory must have a {layout.RUN}, but {path} has none.{hint}")


def is_starting(store: LocalStore) -> bool:
    """Whether a driver is there, but its first worker is not yet."""
    return not store.exists(layout.RUN) and find_driver(store) is not None
