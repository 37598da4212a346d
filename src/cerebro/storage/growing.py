"""Appending to a file that is kept in parts, and merging them when there are many."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.errors import LeaseLostError
from cerebro.storage.objects import Entry, Objects
from cerebro.storage.parts import Part, chain, newest, part_name

#: So many small parts become one; and so many of those again.
MANY = 64


class Growth:
    """The end of one file, for the process that appends to it.

    Of several that append to parts, or begin a file, one succeeds at each place. An object that was
    written whole must be appended to by one process alone, which has a lease: two that turn it into
    parts at the same time may each take its own for those that count.

    Args:
        full: The name of the file.
        entry: The object of that name, if there is one.
        parts: All parts that lie beside it.
    """

    def __init__(
        self, objects: Objects, full: str, entry: Entry | None, parts: Sequence[Part]
    ) -> None:
        self._objects = objects
        self._full = full
        self._folder, _, self._file = full.rpartition("/")
        self._base = entry
        self._all = parts
        self._parts = [] if entry is not None else chain(parts)
        fresh = entry is not None or not self._parts
        self._generation = newest(parts) + 1 if fresh else self._parts[0].generation
        self._length = self._parts[-1].end if self._parts else 0
        #: Bytes of the last parts, by where they begin: those that were not merged yet.
        self._tail: dict[int, bytes] = {}

    def begin(self) -> None:
        """Turn the file into parts, and remove those that count no more."""
        if self._base is not None and self._base.size:
            content = self._objects.get(self._full)
            self._parts = [self._merged(0, len(content), content)]
            self._length = len(content)
            self._objects.remove(self._full)
            self._base = None
        counting = {part.name for part in self._parts}
        if self._base is None:
            for part in self._all:
                if part.name not in counting:
                    self._objects.remove(f"{self._folder}/{part.name}")

    def append(self, data: bytes) -> None:
        """Add bytes, which are durable on return.

        Raises:
            LeaseLostError: Somebody else has added some at the same place.
        """
        part = self._new(data)
        try:
            self._objects.create(f"{self._folder}/{part.name}", data)
        except FileExistsError as error:
            # An attempt whose answer was lost may have been ours.
            if self._objects.get(f"{self._folder}/{part.name}") != data:
                raise LeaseLostError(
                    "a file must be written by one process at a time, but somebody else has added "
                    f"to {self._file}. This process stops; nothing of the other's was changed."
                ) from error
        if self._base is not None:
            # An empty file was there, and counted until now.
            self._objects.remove(self._full)
            self._base = None
        self._parts.append(part)
        self._length = part.end
        self._tail[part.start] = data
        if len(self._tail) >= MANY:
            self._merge_tail()
        if len(self._parts) >= 2 * MANY:
            self.merge_all()

    def merge_all(self) -> None:
        """Make one part of all."""
        if len(self._parts) > 1:
            content = b"".join(map(self._get, self._parts))
            self._replace(0, [self._merged(0, self._length, content)])

    def _merge_tail(self) -> None:
        first = len(self._parts) - len(self._tail)
        start = self._parts[first].start
        content = b"".join(self._tail[part.start] for part in self._parts[first:])
        self._replace(first, [self._merged(start, self._length, content)])

    def _replace(self, first: int, merged: list[Part]) -> None:
        old, self._parts[first:] = self._parts[first:], merged
        self._tail.clear()
        for part in old:
            self._objects.remove(f"{self._folder}/{part.name}")

    def _new(self, data: bytes) -> Part:
        name = part_name(self._file, self._generation, self._length)
        return Part(name, self._generation, self._length, self._length + len(data))

    def _merged(self, start: int, end: int, content: bytes) -> Part:
        name = part_name(self._file, self._generation, start, end)
        # Whoever merges the same range writes the same bytes.
        self._objects.put(f"{self._folder}/{name}", [content])
        return Part(name, self._generation, start, end, True)

    def _get(self, part: Part) -> bytes:
        known = self._tail.get(part.start)
        return self._objects.get(f"{self._folder}/{part.name}") if known is None else known
