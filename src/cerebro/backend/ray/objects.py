"""States in Ray's object store: made by one actor, read by the next, never by the driver."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from cerebro.backend.ray.orders import Handle, InStore
from cerebro.types import Json

#: Smaller results travel inside of the answer, to the driver, unless Ray is set up otherwise.
INLINE_BYTES = 100 << 10


@dataclass(frozen=True, slots=True)
class Held:
    """A state that lies on the node of the worker that made it, until nobody refers to it."""

    ref: Handle
    bytes: int
    meta: Mapping[str, Json]
    worker: int
    node: str

    @property
    def in_store(self) -> InStore:
        return InStore(self.bytes, self.meta)


def as_object(content: memoryview, least: int = INLINE_BYTES) -> npt.NDArray[np.uint8]:
    """Bytes as a value that Ray keeps in its store; longer than they are if they are few.

    The memory is not copied unless it is padded.

    >>> as_object(memoryview(b"state"), least=8).nbytes
    9
    """
    found = np.frombuffer(content, np.uint8)
    if found.nbytes > least:
        return found
    padded = np.zeros(least + 1, np.uint8)
    padded[: found.nbytes] = found
    return padded


def as_bytes(found: npt.NDArray[np.uint8], size: int) -> memoryview:
    """The bytes that became an object; they cannot be written to."""
    return found.data[:size]
