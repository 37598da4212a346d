"""An object store that needs no server: `bucket:///a/directory`, once `register` was called.

As on the real ones there is no rename, no append and no directory without an object in it; an
object appears whole, of two who create it one fails, and a list shows one moment. It is kept in a
local directory, so that it outlives processes that are killed.
"""

from __future__ import annotations

import contextlib
import io
import itertools
import os
from typing import Any

import fsspec

_NUMBERS = itertools.count()
#: Beside the objects, not below them: nobody sees what is being written.
_PENDING = ".pending"


def register() -> None:
    """Let fsspec know `bucket://`."""
    fsspec.register_implementation("bucket", BucketFileSystem, clobber=True)


class BucketFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Objects in a local directory.

    >>> import tempfile
    >>> register()
    >>> from cerebro.storage import open_store
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     store = open_store(f"bucket://{directory}")
    ...     store.write("runs/a", b"1")
    ...     store.list(), store.read("runs/a")
    (['runs'], b'1')
    """

    protocol = "bucket"
    root_marker = "/"
    cachable = False
    creates_exclusively = True

    def info(self, path: str, **kwargs: object) -> dict[str, Any]:
        name = self._strip_protocol(path)
        if os.path.isdir(name):
            if not os.listdir(name):
                raise FileNotFoundError(path)
            return {"name": name, "size": 0, "type": "directory"}
        try:
            return {"name": name, "size": os.stat(name).st_size, "type": "file"}
        except NotADirectoryError:
            raise FileNotFoundError(path) from None

    def ls(self, path: str, detail: bool = True, **kwargs: object) -> list[Any]:
        name = self._strip_protocol(path)
        found = self._listed(name) if os.path.isdir(name) else [self.info(name)]
        return found if detail else [each["name"] for each in found]

    def _listed(self, name: str) -> list[Any]:
        """What is in a directory at one moment: looked at again until nothing changed meanwhile."""
        while True:
            names = _names(name)
            found = []
            for entry in names:
                # Removed meanwhile, or a directory that lost its last object.
                with contextlib.suppress(FileNotFoundError):
                    found.append(self.info(f"{name}/{entry}"))
            if _names(name) == names:
                return found

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: object) -> None:
        name = self._strip_protocol(path)
        temp = f"{os.path.dirname(name)}/{_PENDING}-{os.getpid()}-{next(_NUMBERS)}"
        while True:
            os.makedirs(os.path.dirname(name), exist_ok=True)
            # Whoever removes the last object takes the directory along.
            with contextlib.suppress(FileNotFoundError), open(temp, "wb") as file:
                file.write(value)
                break
        try:
            (os.link if mode == "create" else os.replace)(temp, name)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(temp)

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: object
    ) -> bytes:
        with open(self._strip_protocol(path), "rb") as file:
            return file.read()[start:end]

    def rm_file(self, path: str) -> None:
        name = self._strip_protocol(path)
        os.unlink(name)
        with contextlib.suppress(OSError):
            os.removedirs(os.path.dirname(name))

    def cp_file(self, path1: str, path2: str, **kwargs: object) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def _open(self, path: str, mode: str = "rb", **kwargs: object) -> Any:
        if mode == "rb":
            return open(self._strip_protocol(path), "rb")
        return _Upload(self, path)


def _names(directory: str) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        return sorted(each for each in os.listdir(directory) if not each.startswith(_PENDING))
    return []


class _Upload(io.BytesIO):
    """What is written appears when it is closed, unless it was given up before."""

    def __init__(self, bucket: BucketFileSystem, path: str) -> None:
        super().__init__()
        self._bucket = bucket
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._bucket.pipe_file(self._path, self.getvalue())
        super().close()

    def discard(self) -> None:
        super().close()
