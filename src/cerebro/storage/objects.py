"""The primitive operations of a remote file system, which everything durable there is made of.

Each method is one operation: this is the seam at which tests inject faults. Names are those of the
file system, without a protocol. Nothing is tried again here, and errors come as they are.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, Protocol

from cerebro.storage.disk import Buffer


class Entry(NamedTuple):
    """What is at a name; a directory has no size."""

    name: str
    size: int | None


class Objects(Protocol):
    """Named bytes that appear whole or not at all, durable when a method returns."""

    def put(self, path: str, chunks: Iterable[Buffer]) -> None:
        """Write an object, in place of what has its name.

        Chunks of an iterator are written as they come.
        """

    def create(self, path: str, data: bytes) -> None:
        """Write an object that must not exist yet: of two who try, one gets `FileExistsError`."""

    def get(self, path: str, start: int = 0, end: int | None = None) -> bytes:
        """The bytes of an object, or those from `start` to `end`."""

    def look(self, path: str) -> Entry | None:
        """What is at a name; None if there is nothing."""

    def list(self, path: str) -> list[Entry]:
        """What is in a directory; nothing if there is none."""

    def remove(self, path: str) -> None:
        """Remove an object; nothing happens if there is none."""

    def copy(self, source: str, target: str) -> None:
        """Make a second object of the same bytes, which do not come here where that can be."""
