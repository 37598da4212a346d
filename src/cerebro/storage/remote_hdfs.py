"""Objects on HDFS, through hdfs-native: no JVM, no native libraries of Hadoop."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import importlib
import itertools
import os
import posixpath
from collections.abc import Iterable, Iterator
from functools import cache
from typing import Any
from urllib.parse import unquote, urlsplit

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.storage.disk import Buffer, as_bytes
from cerebro.storage.objects import Entry

#: How much is handed to the client at once, which copies it.
_BLOCK_BYTES = 8 << 20
#: The user that HDFS without Kerberos takes somebody for.
_USER = "HADOOP_USER_NAME"
_TEMP_NUMBERS = itertools.count()
#: Settings of a client: whoever uses it tries again, so that it need not for minutes.
SETTINGS = {
    "dfs.client.failover.max.attempts": "4",
    "dfs.client.failover.sleep.base.millis": "200",
    "dfs.client.failover.sleep.max.millis": "2000",
}
#: What is in the text of an error, and what that means.
_SIGNS: tuple[tuple[str, type[OSError]], ...] = (
    ("AccessControlException", PermissionError),
    ("AlreadyExists", FileExistsError),
    ("FileNotFound", FileNotFoundError),
    ("ParentNotDirectoryException", NotADirectoryError),
    ("is not a directory", NotADirectoryError),
)


class HdfsObjects:
    """The files of one HDFS. A file gets its name once it is written, and so appears whole.

    Args:
        url: Of its NameNode; None for the one that Hadoop's configuration names.
    """

    def __init__(self, url: str | None) -> None:
        self._url = url
        _ = self._client
        self._options = importlib.import_module("hdfs_native").WriteOptions

    @property
    def _client(self) -> Any:
        refuse_forked()
        return _client(self._url)

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        with _translated(), self._written(path, chunks) as temp:
            self._client.rename(temp, path, overwrite=True)

    def create(self, path: str, data: bytes) -> None:
        with _translated(), self._written(path, [data]) as temp:
            try:
                self._client.rename(temp, path, overwrite=False)
            except Exception as error:
                if self.look(path) is not None:
                    raise FileExistsError(path) from error
                raise

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        with _translated():
            reader = self._client.read(path)
            length = len(reader)
            last = length if end is None else min(end, length)
            return bytes(reader.read_range(start, last - start)) if last > start else b""

    def look(self, path: str) -> Entry | None:
        try:
            with _translated():
                return _entry(self._client.get_file_info(path))
        except (FileNotFoundError, NotADirectoryError):
            return None

    def list(self, path: str) -> list[Entry]:
        found = self.look(path)
        if found is None or found.size is not None:
            return []
        try:
            with _translated():
                return [_entry(status) for status in self._client.list_status(path, False)]
        except FileNotFoundError:
            return []

    def remove(self, path: str) -> None:
        with contextlib.suppress(FileNotFoundError), _translated():
            self._client.delete(path, False)

    def copy(self, source: str, target: str) -> None:
        with _translated():
            reader = self._client.read(source)
        self.put(target, _read_blocks(reader))

    @contextlib.contextmanager
    def _written(self, path: str, chunks: Iterable[Buffer]) -> Iterator[str]:
        """Bytes under a passing name, for as long as they are not given another."""
        folder, name = posixpath.split(path)
        temp = f"{folder}/" + f".tmp-{os.getpid()}-{next(_TEMP_NUMBERS)}-{name}"[:100]
        try:
            options = self._options(overwrite=True, create_parent=True)
            with self._client.create(temp, options) as file:
                for view in map(as_bytes, chunks):
                    for start in range(0, len(view), _BLOCK_BYTES):
                        file.write(view[start : start + _BLOCK_BYTES])
            yield temp
        except BaseException:
            with contextlib.suppress(Exception):
                self._client.delete(temp, False)
            raise


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """The client tells all that goes wrong behind a connection in words alone."""
    try:
        yield
    except RuntimeError as error:
        text = str(error)
        kind = next((kind for sign, kind in _SIGNS if sign in text), None)
        if kind is not None:
            raise kind(text) from error
        raise OSError(errno.EIO, text) from error


def open_hdfs(url: str) -> tuple[HdfsObjects, str]:
    """The objects of an hdfs:// URL, and the name inside it."""
    parts = urlsplit(url)
    user, _, place = parts.netloc.rpartition("@")
    if user:
        _become(unquote(user))
    return HdfsObjects(f"hdfs://{place}" if place else None), unquote(parts.path)


#: The clients of hdfs-native in this process, or in the one that it was forked from.
_clients: set[Any] = set()
_is_forked = False


def keep(client: Any) -> None:
    """Never let go of a client of hdfs-native.

    A process that was forked would wait for threads that it does not have: while it is forked, when
    fsspec forgets what it knows, or at its end.
    """
    _clients.add(client)


def refuse_forked() -> None:
    """HDFS cannot be used where connections were inherited: whoever reads would wait for ever.

    Raises:
        UsageError: This process was forked from one that has used HDFS.
    """
    if _is_forked:
        raise UsageError(
            "hdfs:// must be used in a process that was started anew, but this one was forked from "
            'one that has used it. Start it with multiprocessing.get_context("spawn").'
        )


def _inherit() -> None:
    global _is_forked
    _is_forked = bool(_clients)
    for client in _clients:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(client))


os.register_at_fork(after_in_child=_inherit)


@cache
def _client(url: str | None) -> Any:
    try:
        package = importlib.import_module("hdfs_native")
    except ImportError as error:
        raise MissingDependencyError(
            "hdfs:// needs hdfs-native. Install it with `pip install hdfs-native`."
        ) from error
    try:
        client = package.Client(url, SETTINGS)
    except Exception as error:
        raise UsageError(
            f"{url or 'hdfs:///'} cannot be used: {error}. Name the NameNode (hdfs://host:port), "
            "or set HADOOP_CONF_DIR to the directory of core-site.xml."
        ) from error
    keep(client)
    return client


def _become(user: str) -> None:
    """HDFS knows one user a process, the one that the environment names."""
    known = os.environ.setdefault(_USER, user)
    if known != user:
        raise UsageError(
            f"one process can be one user of HDFS, but the URL says {user!r} and {_USER} is "
            f"{known!r}: leave the user out of the URL, or change {_USER}."
        )


def _entry(status: Any) -> Entry:
    name = posixpath.basename(str(status.path).rstrip("/"))
    return Entry(name, None if status.isdir else int(status.length))


def _read_blocks(reader: Any) -> Iterator[bytes]:
    length = len(reader)
    for start in range(0, length, _BLOCK_BYTES):
        yield bytes(reader.read_range(start, min(_BLOCK_BYTES, length - start)))
