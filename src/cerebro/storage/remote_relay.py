"""Files that only another process can reach: it is asked for them, over a socket of this machine.

URLs are `relay://NAME/path`; what a name stands for is the other side's to know.
"""

from __future__ import annotations

import errno
import io
import json
import os
import secrets
import sys
import tempfile
import threading
from collections.abc import Sequence
from multiprocessing.connection import Client, Connection
from typing import Any, BinaryIO, NamedTuple, Protocol, cast

import fsspec

from cerebro.storage.objects import Entry
from cerebro.types import Json

SCHEME = "relay"
#: What is read at a time: so much memory it takes, here and on the way.
PIECE_BYTES = 8 << 20


class Reply(NamedTuple):
    """What the other side found."""

    found: Json
    content: bytes = b""


class Source(Protocol):
    """The other side. Names begin with that of a place; nothing is there as None."""

    def look(self, name: str) -> Entry | None: ...

    def list(self, name: str) -> Sequence[Entry]: ...

    def read(self, name: str, start: int, end: int) -> bytes: ...

    def write(self, name: str, content: bytes) -> None: ...

    def remove(self, name: str) -> None: ...


def serve(connection: Connection, source: Source) -> None:
    """Answer what is asked over a connection, until it is closed."""
    while True:
        try:
            asked = json.loads(connection.recv_bytes())
            content = connection.recv_bytes() if asked["op"] == "write" else b""
        except (EOFError, OSError):
            return
        try:
            reply = _answer(source, asked, content)
            head: dict[str, Json] = {"found": reply.found}
        except Exception as error:
            reply = Reply(None)
            head = {"error": str(error), "errno": getattr(error, "errno", None) or errno.EIO}
        try:
            connection.send_bytes(json.dumps(head).encode())
            connection.send_bytes(reply.content)
        except OSError:
            return


def _answer(source: Source, asked: dict[str, Any], content: bytes) -> Reply:
    name = asked["name"]
    if asked["op"] == "look":
        entry = source.look(name)
        return Reply(None if entry is None else list(entry))
    if asked["op"] == "list":
        return Reply([list(entry) for entry in source.list(name)])
    if asked["op"] == "read":
        return Reply(None, source.read(name, asked["start"], asked["end"]))
    if asked["op"] == "write":
        source.write(name, content)
    else:
        source.remove(name)
    return Reply(None)


class _Channel:
    """The way to the other side, for one question at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._connection: Any = None

    def open(self, address: str, key: bytes) -> Connection:
        self._connection = Client(address, family="AF_UNIX", authkey=key)
        return cast(Connection, self._connection)

    def ask(self, op: str, name: str, content: bytes = b"", **rest: int) -> Reply:
        with self._lock:
            if self._connection is None:
                raise OSError(errno.ENOTCONN, "nobody was named who could be asked", name)
            self._connection.send_bytes(json.dumps({"op": op, "name": name, **rest}).encode())
            if op == "write":
                self._connection.send_bytes(content)
            head = json.loads(self._connection.recv_bytes())
            found = self._connection.recv_bytes()
        if "error" in head:
            raise OSError(head["errno"], head["error"], name)
        return Reply(head["found"], found)


_CHANNEL = _Channel()


def connect(address: str, key: bytes) -> Connection:
    """From now on `relay://` URLs are asked for at this socket, until its connection is closed."""
    fsspec.register_implementation(SCHEME, RelayFileSystem, clobber=True)
    return _CHANNEL.open(address, key)


class RelayFileSystem(fsspec.AbstractFileSystem):  # type: ignore[misc]
    """Files at the other side, as fsspec has them."""

    protocol = SCHEME
    cachable = False

    def info(self, path: str, **kwargs: Any) -> dict[str, Any]:
        name = _name(path)
        found: Any = _CHANNEL.ask("look", name).found
        if found is None:
            raise FileNotFoundError(errno.ENOENT, "there is no such file", name)
        return _info(name, found[1])

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> list[Any]:
        name = _name(path)
        found: Any = _CHANNEL.ask("list", name).found
        entries = [_info(f"{name}/{each[0]}", each[1]) for each in found]
        return entries if detail else [each["name"] for each in entries]

    def cat_file(
        self, path: str, start: int | None = None, end: int | None = None, **kwargs: Any
    ) -> bytes:
        name = _name(path)
        last = int(self.info(path)["size"]) if end is None else end
        pieces = range(start or 0, last, PIECE_BYTES)
        return b"".join(_read(name, at, min(last, at + PIECE_BYTES)) for at in pieces)

    def get_file(self, rpath: str, lpath: str, **kwargs: Any) -> None:
        name, size = _name(rpath), int(self.info(rpath)["size"])
        with open(lpath, "wb") as file:
            for at in range(0, size, PIECE_BYTES):
                file.write(_read(name, at, min(size, at + PIECE_BYTES)))

    def pipe_file(self, path: str, value: bytes, mode: str = "overwrite", **kwargs: Any) -> None:
        _CHANNEL.ask("write", _name(path), bytes(value))

    def rm_file(self, path: str) -> None:
        _CHANNEL.ask("remove", _name(path))

    def cp_file(self, path1: str, path2: str, **kwargs: Any) -> None:
        self.pipe_file(path2, self.cat_file(path1))

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        """Directories are there when they are needed."""

    def _open(self, path: str, mode: str = "rb", **kwargs: Any) -> BinaryIO:
        if mode == "rb":
            return io.BytesIO(self.cat_file(path))
        return _Writing(self, path)


class _Writing(io.BytesIO):
    """A file that is written when it is closed."""

    def __init__(self, filesystem: RelayFileSystem, path: str) -> None:
        super().__init__()
        self._filesystem = filesystem
        self._path = path

    def close(self) -> None:
        if not self.closed:
            self._filesystem.pipe_file(self._path, self.getvalue())
        super().close()

    def discard(self) -> None:
        super().close()


def _name(path: str) -> str:
    return path.removeprefix(f"{SCHEME}://").strip("/")


def _info(name: str, size: int | None) -> dict[str, Any]:
    kind = "directory" if size is None else "file"
    return {"name": name, "size": size or 0, "type": kind}


def _read(name: str, start: int, end: int) -> bytes:
    found = _CHANNEL.ask("read", name, start=start, end=end).content
    if len(found) != end - start:
        raise OSError(errno.EIO, f"{end - start} bytes were asked for, {len(found)} came", name)
    return found


def new_address() -> str:
    """For a socket of this machine: on Linux without a file, elsewhere in a private directory."""
    name = f"cerebro-relay-{secrets.token_hex(8)}"
    if sys.platform == "linux":
        return f"\0{name}"
    return os.path.join(tempfile.mkdtemp(prefix=name), "socket")
