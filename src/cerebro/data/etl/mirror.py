"""A dataset that is kept elsewhere: shards go there, and come back, before the manifest does."""

from __future__ import annotations

import os

from cerebro.data.dataset import open_dataset
from cerebro.data.manifest import FILE, DatasetManifest
from cerebro.data.publication import remove_strays, sole_writer
from cerebro.errors import DataError
from cerebro.storage.remote import (
    copy_to_url,
    exists_url,
    fetch_many,
    join,
    list_url,
    read_url,
    redact,
)
from cerebro.storage.store import LocalStore
from cerebro.types import Split


def upload(path: str, url: str) -> None:
    """Copy a dataset to a URL; whoever reads there finds the old one or the new one."""
    manifest = _local(path)
    there = set(list_url(url)) if exists_url(url) else set()
    for name in sorted(manifest.files - there):
        copy_to_url(os.path.join(path, name), join(url, name))
    copy_to_url(os.path.join(path, FILE), join(url, FILE))


def download(url: str, path: str) -> None:
    """Have the dataset of a URL in a directory; shards that are there already are not fetched.

    Raises:
        DataError: There is no dataset, or its shards are not what its manifest says.
    """
    manifest = remote_manifest(url)
    if manifest is None:
        raise DataError(f"there is no dataset at {redact(url)}: it has no {FILE}.")
    os.makedirs(path, exist_ok=True)
    with sole_writer(path):
        missing = [name for name in sorted(manifest.files) if not _has(path, name)]
        if not missing and _has(path, FILE) and _local(path).digest == manifest.digest:
            return
        fetch_many([(join(url, name), os.path.join(path, name)) for name in missing])
        store = LocalStore(path)
        store.write(FILE, manifest.to_bytes())
        remove_strays(store, manifest)
    open_dataset(path).verify()


def splits_at(url: str) -> tuple[Split, ...]:
    """The splits of the dataset at a URL; none if there is none."""
    manifest = remote_manifest(url)
    return () if manifest is None else tuple(manifest.splits)


def remote_manifest(url: str) -> DatasetManifest | None:
    """The manifest of the dataset at a URL."""
    place = join(url, FILE)
    if not exists_url(place):
        return None
    return DatasetManifest.from_bytes(read_url(place), where=redact(place))


def _local(path: str) -> DatasetManifest:
    store = LocalStore(path)
    return DatasetManifest.from_bytes(store.read(FILE), where=store.local_path(FILE))


def _has(path: str, name: str) -> bool:
    # Its name has its digest; whether it is whole is seen to at the end.
    return os.path.exists(os.path.join(path, name))
