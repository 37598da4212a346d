"""A store at a URL: on an object store, on HDFS, or on whatever else fsspec knows."""

from __future__ import annotations

import contextlib
import errno
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TypeAlias, TypeVar

from cerebro.errors import StoreError
from cerebro.storage.disk import Buffer, as_bytes
from cerebro.storage.growing import Growth
from cerebro.storage.objects import Entry, Objects
from cerebro.storage.parts import Part, chain, parse_part
from cerebro.storage.remote import RENAMING, attempt
from cerebro.storage.remote_names import check_store_url, scheme_of
from cerebro.storage.remote_objects import open_objects
from cerebro.storage.remote_patience import PatientObjects
from cerebro.storage.remote_retry import Retry
from cerebro.storage.store import Data, as_chunks, split_path

_T = TypeVar("_T")
# Inside the class the name `list` is that of a method.
_Names: TypeAlias = list[str]
_Parts: TypeAlias = list[Part]

#: The objects do that themselves.
_ONCE = Retry(attempts=1)
_RANGE_BYTES = 32 << 20
_READERS = 8
#: How often parts are looked for again that somebody merged while they were read.
_LOOKS = 10


class RemoteStore:
    """A store below a URL, which every machine opens with credentials of its own.

    Those come from where the file system's client looks for them: environment variables,
    configuration files, the machine's role. A URL with a password or a query is refused.

    A file appears whole or not at all. One that was appended to is kept in parts (`parts.py`); to
    append is for one process at a time: of two, one is told `LeaseLostError`.

    >>> store = RemoteStore("memory://docs/runs")
    >>> store.write("digits/run.json", b"{}")
    >>> store.append("digits/journal.jsonl", b"one")
    >>> store.append("digits/journal.jsonl", b"two")
    >>> store.list("digits"), store.read("digits/journal.jsonl")
    (['journal.jsonl', 'run.json'], b'onetwo')
    """

    def __init__(
        self, url: str, objects: Objects | None = None, *, retry: Retry | None = None
    ) -> None:
        self._url = check_store_url(url)
        found, path = open_objects(self._url)
        self._root = path.rstrip("/")
        self._objects = PatientObjects(objects or found, retry)
        self._growing: dict[str, Growth] = {}
        #: Directory -> names of files in it that have parts, as far as this process knows.
        self._parted: dict[str, set[str]] = {}
        #: Called before anything is changed; raises if that is not for us any more.
        self.guard: Callable[[], None] | None = None

    def __repr__(self) -> str:
        return f"RemoteStore({self._url!r})"

    def __reduce__(self) -> tuple[type[RemoteStore], tuple[str]]:
        return RemoteStore, (self._url,)

    @property
    def url(self) -> str:
        return self._url

    @property
    def appends_whole(self) -> bool:
        return True

    @property
    def leaves_temps(self) -> bool:
        return scheme_of(self._url) in RENAMING

    def where(self, path: str = "") -> str:
        return f"{self._url}/{'/'.join(split_path(path))}" if path else self._url

    def child(self, path: str) -> RemoteStore:
        return self._with_url(f"{self._url}/{'/'.join(split_path(path))}")

    def unguarded(self) -> RemoteStore:
        """The same store for whoever decides about the guard."""
        other = self._with_url(self._url)
        other.guard = None
        return other

    def read(self, path: str) -> bytes:
        return self._run("read", path, lambda full: self._read(full))

    def read_from(self, path: str, start: int, size: int | None = None) -> bytes:
        def tail(full: str) -> bytes:
            entry = self._look(full)
            last = None if size is None else start + size
            if entry is not None and entry.size is not None:
                end = entry.size if last is None else min(last, entry.size)
                with contextlib.suppress(FileNotFoundError):  # in parts since
                    return self._objects.get(full, start, end) if start < end else b""
            return self._read(full)[start:last]

        return self._run("read", path, tail)

    def read_into(self, path: str, buffer: bytearray | memoryview) -> int:
        view = as_bytes(buffer)
        return self._run("read", path, lambda full: self._read_into(full, view))

    def write(self, path: str, data: Data) -> None:
        self.write_many({path: data})

    def write_many(self, files: Mapping[str, Data]) -> None:
        chunks = {"/".join(split_path(path)): as_chunks(data) for path, data in files.items()}
        for path, each in chunks.items():
            self._write(path, each)

    def copy(self, source: str, target: str) -> None:
        goal = self._full(target)

        def duplicate(full: str) -> None:
            if self._look(full) is None:
                self._objects.put(goal, [self._read(full)])
            else:
                self._objects.copy(full, goal)
            self._drop_parts(goal)

        self._change("copy", source, duplicate)

    def write_stream(self, path: str, chunks: Iterable[Buffer]) -> None:
        source = _Source(chunks)
        try:
            self._write(path, source)
        except StoreError:
            # What goes wrong where the chunks come from is not the store's.
            if source.error is not None:
                raise source.error from None
            raise

    def append(self, path: str, data: Buffer) -> None:
        content = bytes(as_bytes(data))

        def extend(full: str) -> None:
            if not content and self._size(full) is None:
                self._objects.put(full, [b""])
            if not content:
                return
            growth = self._growing.get(full)
            if growth is None:
                growth = Growth(self._objects, full, *self._beside(full))
                growth.begin()
                self._growing[full] = growth
                self._parted.setdefault(_parent(full), set()).add(_base(full))
            growth.append(content)

        try:
            self._change("append to", path, extend)
        except BaseException:
            # Whether it came through is not known: look again before the next.
            self._growing.pop(self._full(path), None)
            raise

    def exists(self, path: str) -> bool:
        return self._run("look for", path, lambda full: self._size(full) is not None)

    def size(self, path: str) -> int:
        def look(full: str) -> int:
            found = self._size(full)
            if found is None:
                raise FileNotFoundError(errno.ENOENT, "there is no such file", full)
            return found

        return self._run("look at", path, look)

    def list(self, path: str = "") -> list[str]:
        def names(full: str) -> _Names:
            plain: set[str] = set()
            parts: dict[str, _Parts] = {}
            for entry in self._objects.list(full):
                found = _as_part(entry)
                if found is None:
                    plain.add(entry.name)
                else:
                    parts.setdefault(found[0], []).append(found[1])
            return sorted(plain | {name for name, each in parts.items() if chain(each)})

        return self._run("list", path, names, is_root=not path)

    def remove(self, path: str) -> None:
        def clear(full: str) -> None:
            self._growing.pop(full, None)
            # Parts before the object: it counts while it is there, and they must not come back.
            self._drop_parts(full)
            self._objects.remove(full)

        self._change("remove", path, clear)

    def truncate(self, path: str, size: int) -> None:
        content = self.read(path)[:size].ljust(size, b"\0")
        self.write(path, content)

    def create(self, path: str, data: bytes) -> bool:
        """Write a file that must not exist yet: whether this call, and no other, has made it."""

        def make(full: str) -> bool:
            try:
                self._objects.create(full, data)
            except FileExistsError:
                return False
            return True

        return self._run("make", path, make)

    def copy_to(self, target: RemoteStore, skip: Callable[[str], bool], path: str = "") -> _Names:
        """Copy all files of a directory, and of those in it; the names of what was copied."""
        copied: _Names = []
        for entry in self._run("list", path, self._objects.list, is_root=not path):
            name = f"{path}/{entry.name}" if path else entry.name
            if entry.size is None:
                copied += self.copy_to(target, skip, name)
            elif not skip(name):
                self._run("copy", name, partial(self._objects.copy, target=target._full(name)))
                copied.append(name)
        return copied

    def remove_object(self, name: str) -> None:
        """Remove what `copy_to` has copied: a file, or a part of one."""
        self._change("remove", name, self._objects.remove)

    def free_bytes(self) -> int:
        return sys.maxsize

    def close(self) -> None:
        growing, self._growing = self._growing, {}
        self._parted.clear()
        for growth in growing.values():
            # For the sake of order alone: nothing is lost where it cannot be done.
            with contextlib.suppress(StoreError, OSError):
                if self.guard is not None:
                    self.guard()
                growth.merge_all()

    def _with_url(self, url: str) -> RemoteStore:
        other = RemoteStore(url)
        other._objects, other.guard = self._objects, self.guard
        return other

    def _full(self, path: str) -> str:
        return f"{self._root}/{'/'.join(split_path(path))}"

    def _run(
        self, action: str, path: str, call: Callable[[str], _T], *, is_root: bool = False
    ) -> _T:
        """Call with the full name of a file; what goes wrong is explained."""
        full = self._root if is_root else self._full(path)
        return attempt(action, f"{self._url}/{path}", _ONCE, lambda: call(full))

    def _change(self, action: str, path: str, call: Callable[[str], _T]) -> _T:
        if self.guard is not None:
            self.guard()
        return self._run(action, path, call)

    def _write(self, path: str, chunks: Iterable[Buffer]) -> None:
        def put(full: str) -> None:
            self._growing.pop(full, None)
            self._objects.put(full, chunks)
            self._drop_parts(full)

        self._change("write", path, put)

    def _read(self, full: str) -> bytes:
        for _ in range(_LOOKS):
            try:
                return self._objects.get(full)
            except FileNotFoundError:
                entry, siblings = self._beside(full)
                if entry is not None and entry.size is not None:
                    continue  # written meanwhile
                parts = chain(siblings)
                if not parts:
                    raise
            try:
                return self._read_parts(_parent(full), parts)
            except FileNotFoundError:
                continue  # merged meanwhile
        raise OSError(errno.EAGAIN, "it changes all the time", full)

    def _read_parts(self, folder: str, parts: _Parts) -> bytes:
        names = [f"{folder}/{part.name}" for part in parts]
        if len(names) == 1:
            return self._objects.get(names[0])
        with ThreadPoolExecutor(_READERS, thread_name_prefix="cerebro-parts") as pool:
            return b"".join(pool.map(self._objects.get, names))

    def _read_into(self, full: str, view: memoryview) -> int:
        entry = self._look(full)
        if entry is not None and entry.size is not None:
            with contextlib.suppress(FileNotFoundError):  # in parts since
                return self._read_ranges(full, view[: entry.size])
        content = self._read(full)[: len(view)]
        view[: len(content)] = content
        return len(content)

    def _read_ranges(self, full: str, view: memoryview) -> int:
        for start in range(0, len(view), _RANGE_BYTES):
            end = min(len(view), start + _RANGE_BYTES)
            content = self._objects.get(full, start, end)
            if len(content) != end - start:
                raise EOFError(f"{end - start} bytes were asked for, and {len(content)} came")
            view[start:end] = content
        return len(view)

    def _look(self, full: str) -> Entry | None:
        return self._objects.look(full)

    def _size(self, full: str) -> int | None:
        """The bytes of a file, 0 for a directory; None if there is neither."""
        # Of what this process appends to, it knows that it is in parts.
        entry = None if full in self._growing else self._look(full)
        if entry is None:
            entry, siblings = self._beside(full)
            if entry is None:
                parts = chain(siblings)
                return parts[-1].end if parts else None
        return entry.size or 0

    def _beside(self, full: str) -> tuple[Entry | None, _Parts]:
        """What there is of a file at one moment: its object, and all parts, old ones too."""
        file = _base(full)
        entries = self._objects.list(_parent(full))
        found = map(_as_part, entries)
        parts = [each[1] for each in found if each is not None and each[0] == file]
        return next((entry for entry in entries if entry.name == file), None), parts

    def _drop_parts(self, full: str) -> None:
        """Remove the parts of a file, so that at no moment older ones count again."""
        folder, file = _parent(full), _base(full)
        if folder not in self._parted:
            found = map(_as_part, self._objects.list(folder))
            self._parted[folder] = {each[0] for each in found if each is not None}
        if file not in self._parted[folder]:
            return
        _, parts = self._beside(full)
        for part in sorted(parts, key=lambda part: (part.generation, part.start)):
            self._objects.remove(f"{folder}/{part.name}")
        self._parted[folder].discard(file)


class _Source:
    """Chunks on their way, and the error that ended them."""

    def __init__(self, chunks: Iterable[Buffer]) -> None:
        self._chunks = chunks
        self.error: Exception | None = None

    def __iter__(self) -> Iterator[Buffer]:
        try:
            yield from self._chunks
        except Exception as error:
            self.error = error
            raise


def _as_part(entry: Entry) -> tuple[str, Part] | None:
    return None if entry.size is None else parse_part(entry.name, entry.size)


def _parent(full: str) -> str:
    return full.rpartition("/")[0]


def _base(full: str) -> str:
    return full.rpartition("/")[2]
