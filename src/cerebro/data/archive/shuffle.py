"""A random order for more samples than memory holds."""

from __future__ import annotations

import contextlib
import os
import shutil
import struct
from collections.abc import Iterable, Iterator
from typing import BinaryIO, TypeAlias

import numpy as np

from cerebro.data.order import seed_words

#: A key and the sample as it stands in a tar.
Packed: TypeAlias = tuple[str, list[bytes]]

_BUCKETS = 256
_MEMORY_BYTES = 256 << 20
_FRAME = struct.Struct("<QIQ")  # place in the order, bytes of the key, bytes of the sample
_PURPOSE = 3


def shuffled(
    samples: Iterable[Packed], seed: int, directory: str, *, memory_bytes: int = _MEMORY_BYTES
) -> Iterator[Packed]:
    """The samples in an order that depends on nothing but the seed and their number.

    Each draws a number, by which they are sorted. Beyond `memory_bytes` they wait in files, one for
    each range of numbers, in `directory/.shuffle`, which is removed at the end; then each file is
    sorted. Only one process may shuffle in a directory.

    >>> [key for key, _ in shuffled([("a", []), ("b", []), ("c", []), ("d", [])], 1, ".")]
    ['a', 'c', 'b', 'd']
    """
    draw = np.random.Generator(
        np.random.PCG64(np.random.SeedSequence((_PURPOSE, *seed_words(seed))))
    )
    held: list[tuple[int, str, bytes]] = []
    held_bytes = 0
    with contextlib.ExitStack() as stack:
        spill: _Spill | None = None
        for key, parts in samples:
            data = b"".join(parts)
            held.append((int(draw.integers(2**64, dtype=np.uint64)), key, data))
            held_bytes += len(data)
            if held_bytes > memory_bytes:
                spill = spill or stack.enter_context(_Spill(directory))
                spill.add(held)
                held, held_bytes = [], 0
        if spill is None:
            yield from _in_order(held)
            return
        spill.add(held)
        del held
        for bucket in range(_BUCKETS):
            yield from _in_order(spill.take(bucket))


def _in_order(held: list[tuple[int, str, bytes]]) -> Iterator[Packed]:
    held.sort(key=lambda entry: entry[0])
    for _, key, data in held:
        yield key, [data]


class _Spill:
    """Files of samples whose numbers begin alike."""

    def __init__(self, directory: str) -> None:
        self._folder = f"{directory}/.shuffle"
        self._files: list[BinaryIO] = []
        self._open = contextlib.ExitStack()

    def __enter__(self) -> _Spill:
        shutil.rmtree(self._folder, ignore_errors=True)  # left by one that was killed
        os.makedirs(self._folder)
        for bucket in range(_BUCKETS):
            file = self._open.enter_context(open(f"{self._folder}/{bucket}", "w+b"))
            self._files.append(file)
        return self

    def __exit__(self, *unused: object) -> None:
        self._open.close()
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, held: list[tuple[int, str, bytes]]) -> None:
        for place, key, data in held:
            name = key.encode()
            file = self._files[place >> 56]
            file.write(_FRAME.pack(place, len(name), len(data)))
            file.write(name)
            file.write(data)

    def take(self, bucket: int) -> list[tuple[int, str, bytes]]:
        file = self._files[bucket]
        file.seek(0)
        found = []
        while frame := file.read(_FRAME.size):
            place, name_bytes, data_bytes = _FRAME.unpack(frame)
            found.append((place, file.read(name_bytes).decode(), file.read(data_bytes)))
        file.close()
        os.remove(f"{self._folder}/{bucket}")
        return found
