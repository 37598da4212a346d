"""Files that rows name: where they are on this machine, fetched first if they are elsewhere."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self

from cerebro.errors import CerebroError, DataError, StoreError, UsageError
from cerebro.storage.remote import fetch_many, is_remote, join, local_path

#: Names that cannot lead out of a directory, whatever they are joined to; others get a longer look.
_PLAIN = re.compile(r"\w[\w .,@+=-]*(/\w[\w .,@+=-]*)*").fullmatch


class Objects:
    """The object files of one shard.

    Those in a local directory are used where they are. Others are fetched, with retries and several
    at a time, into a directory that is gone when the shard is done.

    Args:
        root: Where the names in rows begin; None if there is no such place.
        features: The columns that hold names.
        scratch: A directory for what is fetched.
    """

    def __init__(self, root: str | None, features: Sequence[str], scratch: str) -> None:
        self._root = root
        self._features = features
        self._scratch = scratch
        self._local = None if root is None else local_path(root)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[None] | None = None
        self._folder = ""
        #: By name, what became of a file that could not be fetched.
        self._errors: dict[str, StoreError] = {}
        self._there: set[str] = set()

    def __enter__(self) -> Self:
        if self._features and self._root is not None and is_remote(self._root):
            os.makedirs(self._scratch, exist_ok=True)
            self._folder = tempfile.mkdtemp(prefix="objects-", dir=self._scratch)
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="cerebro-objects")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def fetch(
        self, rows: Sequence[Mapping[str, Any]], following: Sequence[Mapping[str, Any]] = ()
    ) -> str | None:
        """The directory that has the files of these rows; those of `following` come meanwhile.

        A file that cannot be had is an error of the row that names it.
        """
        if self._pool is None:
            return self._local
        if self._ahead is not None:
            self._ahead.result()
        self._fetch(rows)
        self._ahead = self._pool.submit(self._fetch, following) if following else None
        return self._folder

    def check(self, row: Mapping[str, Any]) -> None:
        """Raise if a row names no file, one outside of the directory, or one that was not fetched.

        Whether a local file is there is seen when it is opened: see `missing`.
        """
        for feature in self._features:
            name = row[feature]
            if not isinstance(name, str) or not name:
                raise DataError(f"column {feature!r} must name a file, but is {name!r}")
            if self._root is None:
                raise DataError(
                    f"column {feature!r} names the file {name!r}, but there is no directory for "
                    "files of this split"
                )
            if not _PLAIN(name):
                _inside(self._root, name)
            if name in self._errors:
                raise self._errors[name]

    def missing(self, row: Mapping[str, Any]) -> CerebroError | None:
        """What is wrong if a file that a row names is not there."""
        if self._pool is not None or self._root is None or not self._features:
            return None
        with contextlib.suppress(DataError, TypeError):
            for feature in self._features:
                if not os.path.exists(_inside(self._root, row[feature])):
                    return DataError(f"the file {row[feature]!r} is not in {self._root}")
        return None

    def _fetch(self, rows: Sequence[Mapping[str, Any]]) -> None:
        names = (row.get(feature) for row in rows for feature in self._features)
        pairs, by_url = [], {}
        for name in dict.fromkeys(name for name in names if isinstance(name, str) and name):
            if name in self._there:
                continue
            self._there.add(name)
            with contextlib.suppress(DataError):
                url, target = _inside(str(self._root), name), os.path.join(self._folder, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                pairs.append((url, target))
                by_url[url] = name
        for url, error in fetch_many(pairs, keep_going=True).items():
            if error.errno != errno.ENOENT:
                # Not the row's fault: who may not read, or cannot now, loses no rows by it.
                raise error
            self._errors[by_url[url]] = error


def _inside(root: str, name: str) -> str:
    """The file of this name below the root; a name that leads out of it makes a bad row."""
    try:
        return join(root, name.removeprefix("./"))
    except UsageError as error:
        raise DataError(str(error).rstrip(".")) from error
