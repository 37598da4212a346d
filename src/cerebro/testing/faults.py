"""A disk, or remote objects, that fail on purpose at an operation chosen by its number.

Run once with ``CountOnly`` to learn the number of operations, then once for each of them and each
kind of fault: what is covered is then every operation, not a sample.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NoReturn, TypeAlias, TypeVar

from cerebro.storage.disk import Buffer, Disk, as_bytes
from cerebro.storage.objects import Entry, Objects

T = TypeVar("T")

#: Operations that need space or change the disk; a full disk can still be read and freed.
WRITES = frozenset(
    {"create", "append", "sync", "rename", "link", "sync_dir", "truncate", "make_dir"}
)


@dataclass(frozen=True, slots=True)
class CountOnly:
    """No fault: only count."""


@dataclass(frozen=True, slots=True)
class KillBefore:
    """SIGKILL this process before operation ``at`` (the first is 1)."""

    at: int


@dataclass(frozen=True, slots=True)
class KillAfter:
    """SIGKILL this process after operation ``at``."""

    at: int


@dataclass(frozen=True, slots=True)
class Tear:
    """Write half of the bytes of operation ``at``, then SIGKILL; one without bytes is not done."""

    at: int


@dataclass(frozen=True, slots=True)
class Fail:
    """Operation ``at`` raises ``OSError(errno)``, a create or append after half of its bytes.

    With ``always``, so does every later one; with ``only``, just operations of those names.
    """

    at: int
    errno: int
    always: bool = False
    only: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class Corrupt:
    """Operation ``at`` writes or reads its bytes with bit ``bit`` (modulo their number) flipped."""

    at: int
    bit: int = 0


Rule: TypeAlias = CountOnly | KillBefore | KillAfter | Tear | Fail | Corrupt


class _Struck:
    """Counts operations, and hits one of them as a rule says."""

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.operations: list[str] = []
        self.has_fired = False
        self._counting = threading.Lock()

    def _run(self, name: str, operate: Callable[[], T]) -> T:
        number = self._begin(name)
        result = operate()
        self._end(number)
        return result

    def _count(self, name: str) -> int:
        with self._counting:
            self.operations.append(name)
            return len(self.operations)

    def _begin(self, name: str) -> int:
        number = self._count(name)
        self._strike(number, name)
        return number

    def _end(self, number: int) -> None:
        if isinstance(self.rule, KillAfter) and number == self.rule.at:
            _kill()

    def _hits(self, number: int, name: str) -> bool:
        rule = self.rule
        if isinstance(rule, CountOnly):
            return False
        if isinstance(rule, Fail):
            is_due = number >= rule.at if rule.always else number == rule.at
            return is_due and (not rule.only or name in rule.only)
        return number == rule.at

    def _strike(self, number: int, name: str) -> None:
        """What the rule does instead of the operation, if it is to be hit."""
        if not self._hits(number, name):
            return
        self.has_fired = True
        if isinstance(self.rule, KillBefore | Tear):
            _kill()
        if isinstance(self.rule, Fail):
            raise OSError(self.rule.errno, os.strerror(self.rule.errno))

    def _corrupted(self, number: int, data: bytes) -> bytes:
        if isinstance(self.rule, Corrupt) and number == self.rule.at and data:
            return flip_bit(data, self.rule.bit)
        return data


class FaultyDisk(_Struck, Disk):
    """A disk whose operations are counted and hit by a rule.

    >>> import errno, tempfile
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     disk = FaultyDisk(Disk(), Fail(2, errno.EIO))
    ...     disk.create(f"{directory}/a", [b"x"])
    ...     try:
    ...         disk.sync(f"{directory}/a")
    ...     except OSError as error:
    ...         print(error.strerror)
    ...     disk.close()
    ...     disk.operations, disk.has_fired
    Input/output error
    (['create', 'sync'], True)
    """

    def __init__(self, inner: Disk, rule: Rule) -> None:
        _Struck.__init__(self, rule)
        Disk.__init__(self)
        self.inner = inner

    def create(self, path: str, chunks: Iterable[Buffer]) -> None:
        self._write("create", chunks, lambda pieces: self.inner.create(path, pieces))

    def append(self, path: str, data: Buffer) -> None:
        self._write("append", [data], lambda pieces: self.inner.append(path, pieces[0]))

    def sync(self, path: str) -> None:
        self._run("sync", lambda: self.inner.sync(path))

    def rename(self, source: str, target: str) -> None:
        self._run("rename", lambda: self.inner.rename(source, target))

    def link(self, source: str, target: str) -> None:
        self._run("link", lambda: self.inner.link(source, target))

    def sync_dir(self, path: str) -> None:
        self._run("sync_dir", lambda: self.inner.sync_dir(path))

    def read(self, path: str, start: int = 0, size: int | None = None) -> bytes:
        number = self._begin("read")
        data = self.inner.read(path, start, size)
        self._end(number)
        return self._corrupted(number, data)

    def read_into(self, path: str, buffer: bytearray | memoryview) -> int:
        number = self._begin("read_into")
        count = self.inner.read_into(path, buffer)
        self._end(number)
        view = as_bytes(buffer)[:count]
        view[:] = self._corrupted(number, bytes(view))
        return count

    def list(self, path: str) -> list[str]:
        return self._run("list", lambda: self.inner.list(path))

    def remove(self, path: str) -> None:
        self._run("remove", lambda: self.inner.remove(path))

    def truncate(self, path: str, size: int) -> None:
        self._run("truncate", lambda: self.inner.truncate(path, size))

    def make_dir(self, path: str) -> None:
        self._run("make_dir", lambda: self.inner.make_dir(path))

    def size(self, path: str) -> int:
        return self._run("size", lambda: self.inner.size(path))

    def close(self) -> None:
        self.inner.close()

    def _write(
        self, name: str, chunks: Iterable[Buffer], operate: Callable[[Sequence[Buffer]], None]
    ) -> None:
        chunks = chunks if isinstance(chunks, Sequence) else list(chunks)
        number = self._count(name)
        if isinstance(self.rule, Tear | Fail) and self._hits(number, name):
            data = b"".join(chunks)
            operate([data[: len(data) // 2]])
        self._strike(number, name)
        if isinstance(self.rule, Corrupt) and self._hits(number, name):
            chunks = [self._corrupted(number, b"".join(chunks))]
        operate(chunks)
        self._end(number)


class FaultyObjects(_Struck):
    """Remote objects whose operations are counted and hit by a rule; none is ever torn.

    >>> from cerebro.storage.remote_objects import open_objects
    >>> from cerebro.storage.remote_store import RemoteStore
    >>> objects = FaultyObjects(open_objects("memory://faulty")[0], CountOnly())
    >>> RemoteStore("memory://faulty", objects).write("a", b"1")
    >>> objects.operations
    ['put', 'list']
    """

    def __init__(self, inner: Objects, rule: Rule) -> None:
        super().__init__(rule)
        self.inner = inner

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        self._run("put", lambda: self.inner.put(path, chunks))

    def create(self, path: str, data: bytes) -> None:
        self._run("create", lambda: self.inner.create(path, data))

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        number = self._begin("get")
        data = self.inner.get(path, start, end)
        self._end(number)
        return self._corrupted(number, data)

    def look(self, path: str) -> Entry | None:
        return self._run("look", lambda: self.inner.look(path))

    def list(self, path: str) -> list[Entry]:
        return self._run("list", lambda: self.inner.list(path))

    def remove(self, path: str) -> None:
        self._run("remove", lambda: self.inner.remove(path))

    def copy(self, source: str, target: str) -> None:
        self._run("copy", lambda: self.inner.copy(source, target))


def flip_bit(data: bytes, bit: int) -> bytes:
    """The data with one bit changed; ``bit`` is taken modulo the number of bits.

    >>> flip_bit(b"a", 1)
    b'c'
    """
    flipped = bytearray(data)
    place, shift = divmod(bit % (8 * len(data)), 8)
    flipped[place] ^= 1 << shift
    return bytes(flipped)


def _kill() -> NoReturn:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("unreachable: SIGKILL was sent")
