"""A dataset that is kept elsewhere: shards go there, and come back, before the manifest does."""

from __future__ import annotations

import hashlib
import os

from cerebro.data.manifest import FILE, DatasetManifest, ShardInfo
from cerebro.data.publication import remove_strays, sole_writer
from cerebro.errors import DataError, ShardCorruptError
from cerebro.storage.remote import (
    copy_to_url,
    exists_url,
    fetch_many,
    join,
    list_url,
    read_url,
    redact,
)
from cerebro.storage.store import DirectoryStore
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
        shards = [info for infos in manifest.splits.values() for info in infos]
        missing = [info for info in shards if _size(path, info.file) != info.bytes]
        fetch_many([(join(url, info.file), os.path.join(path, info.file)) for info in missing])
        for info in missing:
            _check(path, info, url)
        store = DirectoryStore(path)
        store.write(FILE, manifest.to_bytes())
        remove_strays(store, manifest)


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
    store = DirectoryStore(path)
    return DatasetManifest.from_bytes(store.read(FILE), where=store.local_path(FILE))


def _size(path: str, name: str) -> int | None:
    try:
        return os.path.getsize(os.path.join(path, name))
    except OSError:
        return None


def _check(path: str, info: ShardInfo, url: str) -> None:
    """See that a file came as the manifest says; if not, it goes again."""
    file = os.path.join(path, info.file)
    with open(file, "rb") as stream:
        found = hashlib.file_digest(stream, "sha256").hexdigest()
    if found != info.sha256:
        os.unlink(file)
        raise ShardCorruptError(
            f"{info.file} of {redact(url)} is damaged: its SHA-256 must be {info.sha256}, but is "
            f"{found}. Prepare the dataset again from its source."
        )
