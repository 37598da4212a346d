"""Files that rows name: where they are on this machine, fetched first if they are elsewhere."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Self

from cerebro.errors import DataError, StoreError, UsageError
from cerebro.storage.remote import fetch_many, is_remote, join, local_path


class Objects:
    """The object files of one shard.

    Those in a local directory are used where they are. Others are fetched, with retries and several
    at a time, into a directory that is gone when the shard is done.

    Args:
        root: Where the names in rows begin; None if rows name no files.
        scratch: A directory for what is fetched.
    """

    def __init__(self, root: str | None, scratch: str) -> None:
        self._root = root
        self._scratch = scratch
        self._is_remote = root is not None and is_remote(root)
        self._pool: ThreadPoolExecutor | None = None
        self._ahead: Future[None] | None = None
        self._folder = ""
        #: By name, what became of a file that could not be fetched.
        self._errors: dict[str, StoreError] = {}
        self._there: set[str] = set()

    def __enter__(self) -> Self:
        if self._is_remote:
            self._folder = tempfile.mkdtemp(prefix=".tmp-objects-", dir=self._scratch)
            self._pool = ThreadPoolExecutor(1, thread_name_prefix="cerebro-objects")
        return self

    def __exit__(self, *exc: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(cancel_futures=True)
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)

    def fetch(self, names: Iterable[str], following: Sequence[str] = ()) -> str | None:
        """The directory that has these files now; `following` are fetched meanwhile.

        A file that cannot be had is an error of the row that names it: see `require`.
        """
        if self._pool is None:
            return None if self._root is None else str(local_path(self._root))
        if self._ahead is not None:
            self._ahead.result()
        self._fetch(names)
        self._ahead = self._pool.submit(self._fetch, following) if following else None
        return self._folder

    def require(self, row: Mapping[str, object], features: Iterable[str]) -> None:
        """Raise unless every file that a row names is there."""
        for feature in features:
            name = row[feature]
            if not isinstance(name, str) or not name:
                raise DataError(f"column {feature!r} must name a file, but is {name!r}")
            if self._root is None:
                raise DataError(
                    f"column {feature!r} names the file {name!r}, but there is no directory for "
                    "files of this split"
                )
            if name in self._errors:
                raise self._errors[name]
            url = _inside(self._root, name)
            if not self._is_remote and not os.path.exists(url):
                raise DataError(f"the file {name!r} is not in {self._root}")

    def _fetch(self, names: Iterable[str]) -> None:
        wanted = [name for name in dict.fromkeys(names) if name not in self._there]
        self._there.update(wanted)
        pairs, by_url = [], {}
        for name in wanted:
            with contextlib.suppress(DataError):
                url, target = _inside(str(self._root), name), os.path.join(self._folder, name)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                pairs.append((url, target))
                by_url[url] = name
        for url, error in fetch_many(pairs, keep_going=True).items():
            self._errors[by_url[url]] = error


def _inside(root: str, name: str) -> str:
    """The file of this name below the root; a name that leads out of it makes a bad row."""
    try:
        return join(root, name.removeprefix("./"))
    except UsageError as error:
        raise DataError(str(error).rstrip(".")) from error
