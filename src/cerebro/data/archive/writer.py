"""Writing samples as shards that WebDataset and plain `tar` read, and an index beside them.

The same samples give the same bytes. A shard gets its name when it is whole and durable, the index
comes last: a directory with an index has everything that the index names.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
import tarfile
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import Self

from cerebro.data.archive.encoders import Encode, encode_field
from cerebro.data.archive.errors import quote
from cerebro.data.archive.index import SUFFIX, TAR, TGZ, IndexEntry, ShardIndex
from cerebro.data.archive.output import BLOCK, ShardFile
from cerebro.data.archive.samples import is_metadata, split_name
from cerebro.errors import DataError, UsageError
from cerebro.storage.disk import Disk
from cerebro.storage.store import DirectoryStore, is_temp
from cerebro.types import Json

MAX_COUNT = 100_000
MAX_BYTES = 1_000_000_000

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,59}", re.ASCII)


class ShardWriter:
    """Writes samples to `<name>-000000.tar`, `<name>-000001.tar`, … and `<name>.shards`.

    Left by an exception it writes no index, and takes the shard it was at away again. What stood
    under these names before is replaced once the first shard is whole. Only one writer may work in
    a directory.

    Args:
        directory: Where to; made if it is not there.
        name: What the files' names begin with: letters, digits, `.`, `_` and `-`.
        max_count: The most samples in a shard.
        max_bytes: The most bytes in a shard, before compression; a single sample may have more.
        compress: Write `.tgz`. Pictures hardly get smaller by it.
        encoders: Functions that make bytes of values, by field or extension; they come first.
        metadata: Put into the index.

    >>> with ShardWriter("train", name="digits", max_count=2) as writer:
    ...     for number in range(3):
    ...         writer.write({"__key__": f"{number:04}", "cls": number, "txt": "a digit"})
    >>> writer.index.total_samples, [shard.samples for shard in writer.index.shards]
    (3, [2, 1])
    >>> sorted(os.listdir("train"))
    ['digits-000000.tar', 'digits-000001.tar', 'digits.shards']
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        *,
        name: str = "shard",
        max_count: int = MAX_COUNT,
        max_bytes: int = MAX_BYTES,
        compress: bool = False,
        encoders: Mapping[str, Encode] | None = None,
        metadata: Mapping[str, Json] | None = None,
        disk: Disk | None = None,
    ) -> None:
        _check(name, max_count, max_bytes)
        self._disk = disk or Disk()
        self._store = DirectoryStore(directory, self._disk)
        self._name = name
        self._max_count = max_count
        self._max_bytes = max_bytes
        self._compress = compress
        self._encoders = encoders or {}
        self._metadata = metadata or {}
        self._lock: int | None = None
        self._made = False
        self._shard: ShardFile | None = None
        self._done: list[IndexEntry] = []
        self._index: ShardIndex | None = None

    @property
    def index(self) -> ShardIndex:
        """What was written; there once the writer is left."""
        if self._index is None:
            raise UsageError("the index is there after the writer was left without an error.")
        return self._index

    def __enter__(self) -> Self:
        root = self._store.root
        if os.path.exists(root) and not os.path.isdir(root):
            raise UsageError(f"shards are written to a directory, but {root} is a file.")
        self._made = not os.path.exists(root)
        os.makedirs(root, exist_ok=True)
        self._lock = _lock(root)
        self._remove_strays(keep=None)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if error is None:
                self._finish()
        finally:
            if self._shard is not None:
                self._shard.discard()
                self._shard = None
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None
            if self._made and self._index is None:
                with contextlib.suppress(OSError):
                    os.rmdir(self._store.root)  # unless there is something in it

    def write(self, sample: Mapping[str, object]) -> None:
        """Add a sample: a `__key__` and at least one field; names with `_` in front are left out.

        Raises:
            DataError: The key or a field cannot be written; nothing of the sample was.
        """
        key, parts = pack(sample, self._encoders)
        self.write_packed(key, parts)

    def write_packed(self, key: str, parts: Sequence[bytes]) -> None:
        """Add a sample that `pack` made."""
        if self._lock is None:
            raise UsageError("a ShardWriter must be entered by `with` before it can write.")
        size = sum(map(len, parts))
        shard = self._shard
        if shard is not None and (
            shard.samples >= self._max_count or shard.packed_bytes + size > self._max_bytes
        ):
            self._close_shard()
        if self._shard is None:
            number = len(self._done)
            suffix = "tgz" if self._compress else "tar"
            file = f"{self._name}-{number:06d}.{suffix}"
            self._shard = ShardFile(self._store.root, file, self._disk, self._compress)
        self._shard.add(key, parts, size)

    def _close_shard(self) -> None:
        if self._shard is None:
            return
        if not self._done:
            # From here on the shards that an old index names are replaced, so it must go first.
            self._store.remove(self._name + SUFFIX)
        self._done.append(self._shard.publish())
        self._shard = None

    def _finish(self) -> None:
        self._close_shard()
        if not self._done:
            raise DataError("there must be at least one sample to write, but there is none.")
        self._index = ShardIndex(
            shardtype=TGZ if self._compress else TAR,
            shards=tuple(self._done),
            metadata=self._metadata,
        )
        self._store.write(self._name + SUFFIX, self._index.to_bytes())
        self._remove_strays(keep={shard.urls[0] for shard in self._done})

    def _remove_strays(self, keep: set[str] | None) -> None:
        """Remove what a killed writer was at, and once all is written, what was there before."""
        ours = re.compile(rf"(\.tmp-\d+-\d+-)?{re.escape(self._name)}-\d{{6}}\.(tar|tgz)")
        for name in self._store.list():
            is_stale = keep is not None and name not in keep
            if ours.fullmatch(name) and (is_temp(name) or is_stale):
                self._store.remove(name)


def write_shards(
    directory: str | os.PathLike[str],
    samples: Iterable[Mapping[str, object]],
    *,
    name: str = "shard",
    max_count: int = MAX_COUNT,
    max_bytes: int = MAX_BYTES,
    compress: bool = False,
    encoders: Mapping[str, Encode] | None = None,
    metadata: Mapping[str, Json] | None = None,
) -> ShardIndex:
    """Write all samples; the arguments are those of `ShardWriter`.

    >>> index = write_shards("train", [{"__key__": "a", "txt": "hop"}])
    >>> index.shards[0].urls, index.total_bytes
    (('shard-000000.tar',), 10240)
    """
    writer = ShardWriter(
        directory,
        name=name,
        max_count=max_count,
        max_bytes=max_bytes,
        compress=compress,
        encoders=encoders,
        metadata=metadata,
    )
    with writer:
        for sample in samples:
            writer.write(sample)
    return writer.index


def pack(
    sample: Mapping[str, object], encoders: Mapping[str, Encode] | None = None
) -> tuple[str, list[bytes]]:
    """A sample's key, and its fields as they stand in a tar, sorted by name."""
    key = sample.get("__key__")
    if not isinstance(key, str):
        raise DataError(f"a sample must have a text `__key__`, but it is {quote(key)}.")
    parts: list[bytes] = []
    for field in sorted(name for name in sample if not name.startswith("_")):
        name = _member_name(key, field)
        data = encode_field(key, field, sample[field], encoders or {})
        parts += [_header(name, len(data)), data, bytes(-len(data) % BLOCK)]
    if not parts:
        raise DataError(f"a sample must have at least one field, but {quote(key)} has none.")
    return key, parts


def _member_name(key: str, field: str) -> str:
    name = f"{key}.{field}"
    is_plain = "" not in key.split("/") and "." not in key.split("/")
    if not is_plain or is_metadata(name) or split_name(name) != (key, field, None):
        raise DataError(
            "a key must be a name without dots (folders in front may have some) that does not "
            "begin with `__`, and a field lower-case without `/`, but got key "
            f"{quote(key)} and field {quote(field)}."
        )
    return name


def _header(name: str, size: int) -> bytes:
    info = tarfile.TarInfo(name)
    info.size = size
    try:
        name.encode()
        return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")
    except UnicodeError as error:
        raise DataError(
            f"names must be text that UTF-8 can hold, but got {quote(name)}."
        ) from error


def _check(name: str, max_count: int, max_bytes: int) -> None:
    if not _NAME.fullmatch(name):
        raise UsageError(
            "a name must be 1 to 60 letters, digits, '.', '_' or '-' and begin with none of the "
            f"last two but '_', but got {quote(name)}."
        )
    for what, value in (("max_count", max_count), ("max_bytes", max_bytes)):
        if type(value) is not int or value < 1:
            raise UsageError(f"`{what} >= 1` must hold, but got {what}={quote(value)}.")


def _lock(root: str) -> int:
    """Keep other writers out; the kernel lets go should this process die."""
    descriptor = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise UsageError(
            f"only one process may write shards to a directory at a time, but another one is "
            f"writing to {root}. Wait for it or choose another directory."
        ) from error
    return descriptor
