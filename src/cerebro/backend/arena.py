"""Shared memory for states: one anonymous file, cut into slots, mapped by all processes of a host.

The file has no name, so nothing is left behind however a process ends.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import tempfile
from dataclasses import dataclass

_PAGE = mmap.ALLOCATIONGRANULARITY
#: Every mapping costs a file descriptor, so slots share large ones; untouched pages cost nothing.
_SEGMENT_BYTES = 256 << 20
#: Pages of free slots kept for the next states, beyond as many bytes as are in use.
_RESERVE_BYTES = 256 << 20
#: Makes pages writable before they are written, in one call; not named by `mmap` yet.
_MADV_POPULATE_WRITE = 23


@dataclass(frozen=True, slots=True)
class Segment:
    """A part of the file that is mapped as a whole."""

    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of a segment, in whole pages."""

    segment: Segment
    start: int
    capacity: int


def create_arena() -> int:
    """A file descriptor of a new, empty, unnamed file in memory (on disk where there is none)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cerebro", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mapping:
    """This process's view of the arena; each segment is mapped once and stays mapped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._maps: dict[Segment, mmap.mmap] = {}
        self._views: dict[Slot, memoryview] = {}

    def view(self, slot: Slot) -> memoryview:
        """The bytes of a slot, writable and page-aligned."""
        view = self._views.get(slot)
        if view is None:
            mapped = self._map(slot.segment)
            with contextlib.suppress(OSError, ValueError):
                mapped.madvise(_MADV_POPULATE_WRITE, slot.start, slot.capacity)
            view = memoryview(mapped)[slot.start : slot.start + slot.capacity]
            self._views[slot] = view
        return view

    def forget(self, slot: Slot) -> None:
        """Give the memory of a slot's pages back to the system; they read as zeros then."""
        if hasattr(mmap, "MADV_REMOVE"):
            with contextlib.suppress(OSError, ValueError):
                self._map(slot.segment).madvise(mmap.MADV_REMOVE, slot.start, slot.capacity)

    def _map(self, segment: Segment) -> mmap.mmap:
        mapped = self._maps.get(segment)
        if mapped is None:
            mapped = mmap.mmap(self._fd, segment.size, offset=segment.offset)
            self._maps[segment] = mapped
        return mapped


class Arena:
    """Hands out slots. Freed slots are used again for states of the same size."""

    def __init__(self) -> None:
        self.fd = create_arena()
        self._mapping = Mapping(self.fd)
        self._segment = Segment(0, 0)
        #: Where the next slot of the newest segment starts.
        self._end = 0
        self._free: dict[int, list[Slot]] = {}
        self._used_bytes = 0
        #: Free slots whose pages have not been given back, the longest unused first.
        self._idle: dict[Slot, None] = {}
        self._idle_bytes = 0

    def allocate(self, size: int) -> Slot:
        """A slot of at least `size` bytes."""
        capacity = max(_PAGE, -(-size // _PAGE) * _PAGE)
        self._used_bytes += capacity
        free = self._free.get(capacity)
        if free:
            slot = free.pop()
            if slot in self._idle:
                del self._idle[slot]
                self._idle_bytes -= capacity
            return slot
        if self._end + capacity > self._segment.size:
            self._grow(capacity)
        slot = Slot(self._segment, self._end, capacity)
        self._end += capacity
        return slot

    def free(self, slot: Slot) -> None:
        """Give a slot back."""
        self._free.setdefault(slot.capacity, []).append(slot)
        self._idle[slot] = None
        self._used_bytes -= slot.capacity
        self._idle_bytes += slot.capacity
        while self._idle_bytes > self._used_bytes + _RESERVE_BYTES:
            oldest = next(iter(self._idle))
            del self._idle[oldest]
            self._idle_bytes -= oldest.capacity
            self._mapping.forget(oldest)

    def view(self, slot: Slot) -> memoryview:
        """The bytes of a slot in this process."""
        return self._mapping.view(slot)

    def close(self) -> None:
        """Close the file; mappings that are still in use live on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1

    def _grow(self, capacity: int) -> None:
        offset = self._segment.offset + self._segment.size
        self._segment = Segment(offset, max(_SEGMENT_BYTES, capacity))
        self._end = 0
        os.ftruncate(self.fd, offset + self._segment.size)
