"""A run's directory, seen from the command line."""

from __future__ import annotations

import os
import socket
from datetime import datetime
from pathlib import Path

import psutil

from cerebro.errors import UsageError
from cerebro.storage import LocalStore, layout
from cerebro.storage.lock import Holder, read_holder

#: The lock's time is cut to whole seconds.
_CLOCK_S = 2.0


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


def find_driver(store: LocalStore) -> Holder | None:
    """Who writes the run now. A driver on another host cannot be checked and counts as alive."""
    holder = read_holder(store)
    if holder is None or holder.host != socket.gethostname():
        return holder
    try:
        began_s = psutil.Process(holder.pid).create_time()
        taken_s = datetime.fromisoformat(holder.started).timestamp()
    except (psutil.Error, ValueError, TypeError):
        return None
    # A later process may have got the number of a dead driver.
    return holder if began_s <= taken_s + _CLOCK_S else None
