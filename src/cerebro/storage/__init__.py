"""Where everything durable lives: the only file I/O of a run."""

from __future__ import annotations

from cerebro.storage.store import LocalStore, Store, open_store

__all__ = ["LocalStore", "Store", "open_store"]
