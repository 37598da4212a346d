"""Where everything durable lives: the only file I/O of a run."""

from __future__ import annotations

from cerebro.storage.opening import open_store
from cerebro.storage.places import HDFSStore, LocalStore, PrefixStore
from cerebro.storage.store import DirectoryStore, Store

__all__ = ["DirectoryStore", "HDFSStore", "LocalStore", "PrefixStore", "Store", "open_store"]
