"""What a remote store needs on this machine: a directory for what cannot be elsewhere.

Prepared data are mapped, logs of workers are written by the system, pages are drawn while a run
goes on. In a directory all that lies beside the run itself. For a remote store it lies in
`$CEREBRO_CACHE` (default `~/.cache/cerebro`), and pages are copied to the store.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

from cerebro.errors import LeaseLostError, StoreError, UsageError
from cerebro.storage.store import DirectoryStore, Store, is_temp

logger = logging.getLogger("cerebro.storage")

CACHE = "CEREBRO_CACHE"
#: How often what changed is copied.
COPY_S = 10.0


def working_directory(store: Store, path: str = "") -> str:
    """A directory of this machine for a store, always the same; it is not made here.

    >>> from cerebro.storage import DirectoryStore
    >>> working_directory(DirectoryStore("/var/runs"), "logs")
    '/var/runs/logs'
    """
    if isinstance(store, DirectoryStore):
        return store.local_path(path)
    digest = hashlib.sha256(store.url.encode()).hexdigest()[:16]
    home = os.environ.get(CACHE) or os.path.join(os.path.expanduser("~"), ".cache", "cerebro")
    return os.path.abspath(os.path.join(home, digest, path))


@contextlib.contextmanager
def published(store: Store, *, copy_s: float = COPY_S) -> Iterator[str]:
    """A directory whose files are in the store as well: at once, or for a remote one soon.

    What is written there can be had again: so it is copied as well as can be, and never fails
    anybody. At the end all of it is copied, unless the store belongs to somebody else by then.

    >>> from cerebro.storage import open_store
    >>> store = open_store("memory://published")
    >>> with published(store) as directory:
    ...     _ = Path(directory, "report.html").write_text("<html>")
    >>> store.read("report.html")
    b'<html>'
    """
    if isinstance(store, DirectoryStore):
        yield store.root
        return
    with tempfile.TemporaryDirectory(prefix="cerebro-") as directory:
        copier = _Copier(store, Path(directory), copy_s)
        try:
            yield directory
        except LeaseLostError:
            copier.close()
            raise
        except BaseException:
            copier.close()
            copier.copy()
            raise
        copier.close()
        copier.copy()


class _Copier:
    """A thread that copies files which have changed."""

    def __init__(self, store: Store, root: Path, copy_s: float) -> None:
        self._store = store
        self._root = root
        self._copy_s = copy_s
        self._known: dict[str, tuple[int, int]] = {}
        self._has_warned = False
        self._is_closed = threading.Event()
        self._thread = threading.Thread(target=self._work, name="cerebro-copier", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread."""
        self._is_closed.set()
        self._thread.join()

    def copy(self) -> None:
        """Copy what has changed since it was copied last."""
        for path in sorted(self._root.rglob("*")):
            name = path.relative_to(self._root).as_posix()
            if is_temp(path.name) or not path.is_file():
                continue
            try:
                status = path.stat()
                state = (status.st_mtime_ns, status.st_size)
                if self._known.get(name) != state:
                    self._store.write(name, path.read_bytes())
                    self._known[name] = state
            except FileNotFoundError:
                continue
            except (StoreError, UsageError, OSError) as error:
                self._warn(name, error)
                return

    def _work(self) -> None:
        while not self._is_closed.wait(self._copy_s):
            self.copy()

    def _warn(self, name: str, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning("%s could not be copied to %s: %s", name, self._store.url, error)
