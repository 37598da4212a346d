"""Shared memory for states: one anonymous file, cut into slots, mapped by all processes of a host.

The file has no name, so nothing is left behind however a process ends.
"""

from __future__ import annotations

import mmap
import os
import tempfile
from dataclasses import dataclass

_PAGE = mmap.ALLOCATIONGRANULARITY


@dataclass(frozen=True, slots=True)
class Slot:
    """A range of the arena, in whole pages."""

    offset: int
    capacity: int


def create_arena() -> int:
    """A file descriptor of a new, empty, unnamed file in memory (on disk where there is none)."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("cerebro", os.MFD_CLOEXEC)
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


class Mapping:
    """This process's view of the arena; each slot is mapped once and stays mapped."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._maps: dict[Slot, memoryview] = {}

    def view(self, slot: Slot) -> memoryview:
        """The bytes of a slot, writable and page-aligned."""
        view = self._maps.get(slot)
        if view is None:
            flags = mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0)
            mapped = mmap.mmap(self._fd, slot.capacity, flags=flags, offset=slot.offset)
            view = self._maps[slot] = memoryview(mapped)
        return view


class Arena:
    """Hands out slots. Freed slots are used again for states of the same size."""

    def __init__(self) -> None:
        self.fd = create_arena()
        self._mapping = Mapping(self.fd)
        self._end = 0
        self._free: dict[int, list[Slot]] = {}

    def allocate(self, size: int) -> Slot:
        """A slot of at least `size` bytes."""
        capacity = max(_PAGE, -(-size // _PAGE) * _PAGE)
        free = self._free.get(capacity)
        if free:
            return free.pop()
        slot = Slot(self._end, capacity)
        self._end += capacity
        os.ftruncate(self.fd, self._end)
        return slot

    def free(self, slot: Slot) -> None:
        """Give a slot back."""
        self._free.setdefault(slot.capacity, []).append(slot)

    def view(self, slot: Slot) -> memoryview:
        """The bytes of a slot in this process."""
        return self._mapping.view(slot)

    def close(self) -> None:
        """Close the file; mappings that are still in use live on."""
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1
