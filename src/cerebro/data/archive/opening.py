"""Where archives come from: names, and the streams behind them."""

from __future__ import annotations

import errno
import glob
import os
from typing import BinaryIO

from cerebro.data.archive.errors import ArchiveError
from cerebro.errors import StoreError
from cerebro.storage.remote import Retry, glob_url, is_remote, join, local_path, open_url, redact

__all__ = ["is_absolute", "is_remote", "list_matching", "open_stream", "redact", "resolve"]


def open_stream(url: str, *, is_last_hope: bool = True) -> BinaryIO:
    """A file or URL, opened for reading; tried once only if there is another replica.

    Raises `ArchiveError`.
    """
    try:
        return open_url(url, retry=None if is_last_hope else Retry(attempts=1))
    except StoreError as error:
        is_missing = error.errno == errno.ENOENT
        reason = "there is no such file. Check the name." if is_missing else str(error)
        raise ArchiveError(redact(url), reason) from error


def list_matching(pattern: str) -> list[str]:
    """Files and URLs that match a glob, sorted."""
    path = local_path(pattern)
    return glob_url(pattern) if path is None else sorted(glob.glob(path))


def is_absolute(url: str) -> bool:
    """Whether a name means the same wherever it stands.

    >>> is_absolute("s3://bucket/a.tar"), is_absolute("/data/a.tar"), is_absolute("a.tar")
    (True, True, False)
    """
    return "://" in url or "::" in url or os.path.isabs(url)


def resolve(base: str, name: str) -> str:
    """A name that is meant from where `base` is, and must not lead out of there.

    >>> resolve("s3://bucket/train.shards", "a/0.tar"), resolve("train.shards", "0.tar")
    ('s3://bucket/a/0.tar', '0.tar')
    """
    path, mark, query = base.partition("?") if is_remote(base) else (base, "", "")
    folder, slash, _ = path.rpartition("/")
    if not slash:
        return join(".", name).removeprefix("./")
    return join((folder or "/") + mark + query, name)
