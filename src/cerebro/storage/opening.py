"""From a path or URL to the store that is there."""

from __future__ import annotations

import os

from cerebro.errors import UsageError
from cerebro.storage.remote_names import Url, local_path, redact, scheme_of
from cerebro.storage.remote_store import RemoteStore
from cerebro.storage.store import DirectoryStore, Store


def open_store(url: Url) -> Store:
    """The store at a path, a ``file://`` URL, or any URL that fsspec knows and can write to.

    >>> open_store("file:///var/runs"), open_store("memory://runs")
    (DirectoryStore('/var/runs'), RemoteStore('memory://runs'))
    """
    text = os.fspath(url)
    path = local_path(text) if text else text
    return RemoteStore(text) if path is None else DirectoryStore(path)


def open_directory(path: Url) -> DirectoryStore:
    """The store at a path or a ``file://`` URL, for files that must be on this machine.

    >>> open_directory("s3://bucket/data")
    Traceback (most recent call last):
    cerebro.errors.UsageError: a directory of this machine is needed, but got s3://bucket/data.
    """
    found = local_path(path)
    if found is None:
        raise UsageError(f"a directory of this machine is needed, but got {redact(path)}.")
    return DirectoryStore(found)


def check_shared(store: Store) -> None:
    """Refuse a store that no other process can see, for workers that are to read from it.

    >>> check_shared(open_store("memory://runs"))
    Traceback (most recent call last):
    cerebro.errors.UsageError: workers must see the store, but memory://runs lives in this process \
alone: use a directory, another URL, or backend="inline".
    """
    if scheme_of(store.url) == "memory":
        raise UsageError(
            f"workers must see the store, but {store.url} lives in this process alone: use a "
            'directory, another URL, or backend="inline".'
        )
