"""Data that models are trained on: nobody may replace them meanwhile.

In a directory those who train share the lock that a writer wants for itself. At a URL each of them
has a lease of its own, and a writer looks for these.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Iterator
from dataclasses import replace

from cerebro.data.dataset import Dataset, open_dataset
from cerebro.errors import DataError, RunLockedError, StoreError
from cerebro.storage.lock import Holder, RunLock, read_holder
from cerebro.storage.opening import open_store
from cerebro.storage.store import DirectoryStore, Store

#: What the names of such leases begin with.
_USE = "use-"
#: Whoever has the lock for longer writes; others take it only to see whether somebody does.
_MOMENT_S = 1.0
_PAUSE_S = 0.05
_LOOKS = 200


@contextlib.contextmanager
def in_use(dataset: Dataset) -> Iterator[None]:
    """Whoever would write the dataset is refused meanwhile; any number may use it.

    Raises `DataError` if somebody is writing it, or has since it was opened.

    >>> import tempfile
    >>> from cerebro.data import from_arrays
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     with in_use(from_arrays(folder, {"x": [1.0, 2.0]}, shards=1)):
    ...         from_arrays(folder, {"x": [3.0]}, shards=1)
    Traceback (most recent call last):
    cerebro.errors.DataError: a dataset must stay as it is while models are trained on it, but \
another search is at it, in ... Wait until that is done, or choose another place.
    """
    store = open_store(dataset.path)
    is_directory = isinstance(store, DirectoryStore)
    with _sharing(dataset.path) if is_directory else _leasing(store):
        if open_dataset(dataset.path).digest != dataset.digest:
            raise DataError(
                f"the data at {dataset.path} must stay as they are until models are trained on "
                "them, but somebody has replaced them meanwhile: give each search that is run at "
                "the same time a train_path or prefix_path of its own."
            )
        yield


def refuse_users(store: Store) -> None:
    """Raise if models are trained on the dataset of a remote store; for whoever has its lock."""
    uses = {name.rpartition(".")[0] for name in store.list() if name.startswith(_USE)}
    for use in sorted(uses):
        left = RunLock(open_store(store.url), use)
        try:
            left.acquire()
        except RunLockedError as error:
            holder = read_holder(store, use)
            who = "another search" if holder is None else f"pid {holder.pid} on {holder.host}"
            raise used_by(who, store.where()) from error
        left.release()
        _forget(store, use)


def is_shared(descriptor: int) -> bool:
    """Whether a directory's lock is held, but by nobody who writes."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def used_by(who: str, where: str) -> DataError:
    """What a writer is told while somebody trains."""
    return DataError(
        f"a dataset must stay as it is while models are trained on it, but {who} is at it, in "
        f"{where}. Wait until that is done, or choose another place."
    )


@contextlib.contextmanager
def _sharing(root: str) -> Iterator[None]:
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise _being_written(root) from error
        yield
    finally:
        # Not by closing alone: processes that were forked meanwhile have it too.
        fcntl.flock(descriptor, fcntl.LOCK_UN)
        os.close(descriptor)


@contextlib.contextmanager
def _leasing(store: Store) -> Iterator[None]:
    use = f"{_USE}{secrets.token_hex(8)}"
    lease = RunLock(open_store(store.url), use)
    try:
        # Where this process may only read, nobody hears of it.
        with contextlib.suppress(StoreError):
            lease.acquire()
            # In this order: whoever begins to write from now on finds the lease.
            _refuse_writer(store)
        yield
    finally:
        lease.release()
        with contextlib.suppress(StoreError):
            _forget(store, use)


def _refuse_writer(store: Store) -> None:
    """Raise if somebody writes. Others who train are no obstacle, not even while they ask this."""
    holder, since_s = _holder(store), time.monotonic()
    for _ in range(_LOOKS):
        if holder is None:
            return
        try:
            # Whoever has it may be dead: to take the lock, for a moment, tells.
            with RunLock(open_store(store.url)):
                return
        except RunLockedError as error:
            latest, now_s = _holder(store), time.monotonic()
            if latest == holder and now_s - since_s > _MOMENT_S:
                raise _being_written(store.where()) from error
        if latest != holder:
            holder, since_s = latest, now_s
        time.sleep(_PAUSE_S)
    raise _being_written(store.where())


def _holder(store: Store) -> Holder | None:
    found = read_holder(store)
    return None if found is None else replace(found, renewed=None)


def _forget(store: Store, use: str) -> None:
    for name in store.list():
        if name.startswith(f"{use}."):
            store.remove(name)


def _being_written(where: str) -> DataError:
    return DataError(
        f"data must stay as they are while models are trained on them, but another process is "
        f"writing {where}. Wait for it, or give this search a train_path or prefix_path of its own."
    )
