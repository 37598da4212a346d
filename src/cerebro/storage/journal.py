"""The journal: what happened in a run, appended record by record.

A record is a line ``<length> <crc32> <json>``: the length of the JSON in bytes, its CRC-32 as 8
hexadecimal digits, and the JSON itself, which holds no newline.
"""

from __future__ import annotations

import contextlib
import errno
import json
import re
import zlib
from collections.abc import Mapping, Sequence
from typing import NamedTuple, Self

from cerebro.errors import JournalCorruptError, LeaseLostError, StoreError
from cerebro.storage import layout
from cerebro.storage.store import Store
from cerebro.types import Json

_HEAD = re.compile(rb"([1-9][0-9]{0,11}) ([0-9a-f]{8}) ")
# Every place where a record could begin, also inside what looks like a longer number.
_START = re.compile(rb"(?=[0-9]{1,12} [0-9a-f]{8} \{)")


class Replay(NamedTuple):
    """The good records of a journal file, how many bytes they take, and if more follows."""

    records: list[dict[str, Json]]
    good_bytes: int
    is_torn: bool


class Journal:
    """An append-only file of records with one writer.

    ``records`` are those found when it was opened; ``repaired`` says whether a torn tail (the
    record being written when the writer was killed) was cut off.

    >>> import tempfile
    >>> from cerebro.storage import DirectoryStore
    >>> with tempfile.TemporaryDirectory() as directory:
    ...     journal = Journal.open(DirectoryStore(directory))
    ...     journal.append([{"event": "done", "trial": 0}])
    ...     journal.close()
    ...     Journal.open(DirectoryStore(directory)).records
    [{'event': 'done', 'trial': 0}]
    """

    def __init__(
        self, store: Store, path: str, records: list[dict[str, Json]], size: int, repaired: bool
    ) -> None:
        self.records = records
        self.repaired = repaired
        self._store = store
        self._path = path
        self._size = size
        self._has_failed = False

    @classmethod
    def open(cls, store: Store, path: str = layout.JOURNAL) -> Self:
        """Replay a journal, or start one; a torn tail is cut off.

        Raises:
            JournalCorruptError: a record before the tail is damaged.
        """
        if not store.exists(path):
            store.write(path, b"")
        replay = read(store, path)
        if replay.is_torn:
            store.truncate(path, replay.good_bytes)
        return cls(store, path, replay.records, replay.good_bytes, replay.is_torn)

    def append(self, records: Sequence[Mapping[str, Json]]) -> None:
        """Add records with one write and one sync; they are durable on return.

        After a failure the journal takes no more: open it again.

        Raises:
            LeaseLostError: somebody else changed the file.
        """
        if self._has_failed:
            raise StoreError(
                f"journal {self._path} takes no records after a failed write. Run the same "
                "command again to resume."
            )
        data = b"".join(map(encode, records))
        if not data:
            return
        self._check_lease()
        try:
            self._store.append(self._path, data)
        except BaseException:
            self._has_failed = True
            if not self._store.appends_whole:
                # Best effort: opening would cut off a torn tail as well.
                with contextlib.suppress(StoreError):
                    self._store.truncate(self._path, self._size)
            raise
        self._size += len(data)

    def close(self) -> None:
        """Let go of the file."""
        self._store.close()

    def _check_lease(self) -> None:
        size: int | None
        try:
            size = self._store.size(self._path)
        except StoreError as error:
            if error.errno != errno.ENOENT:
                raise
            size = None
        if size != self._size:
            self._has_failed = True
            found = "is gone" if size is None else f"has {size}"
            raise LeaseLostError(
                f"journal {self._path} must have {self._size} bytes, but {found}: another driver "
                f"has written to this run ({self._store.url}). This one stops; nothing of the "
                "other's was changed."
            )


def read(store: Store, path: str = layout.JOURNAL) -> Replay:
    """The records of a journal, which is not changed: safe while a driver writes it.

    Raises:
        JournalCorruptError: a record before the tail is damaged.
    """
    data = store.read(path)
    records: list[dict[str, Json]] = []
    offset = 0
    while (found := _decode(data, offset)) is not None:
        record, offset = found
        records.append(record)
    if any(_decode(data, match.start()) for match in _START.finditer(data, offset)):
        # A write cut short leaves nothing good behind it, so this is damage.
        raise JournalCorruptError(
            f"record {len(records) + 1} of {store.where(path)} is damaged at byte {offset}, "
            "and good records follow it. Restore the file from a copy, or start the run afresh."
        )
    return Replay(records, offset, offset != len(data))


def encode(record: Mapping[str, Json]) -> bytes:
    """The line of a record.

    >>> encode({"trial": 0})
    b'11 ed67c086 {"trial":0}\\n'
    """
    text = json.dumps(record, separators=(",", ":")).encode()
    return b"%d %08x %b\n" % (len(text), zlib.crc32(text), text)


def _decode(data: bytes, offset: int) -> tuple[dict[str, Json], int] | None:
    """The record at an offset and where the next begins, or None if there is no good one."""
    head = _HEAD.match(data, offset)
    if head is None:
        return None
    end = head.end() + int(head[1])
    if data[end : end + 1] != b"\n":
        return None
    text = data[head.end() : end]
    if b"%08x" % zlib.crc32(text) != head[2]:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return (record, end + 1) if isinstance(record, dict) else None
