"""Arrays of numbers in MATLAB's files of version 5, read as a stream.

Arrays lie there by columns, the last dimension outermost: so the rows of SVHN, whose number is the
last dimension, come one after the other, and a file of any size is read in little memory.
"""

from __future__ import annotations

import io
import math
import struct
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO, Protocol

import numpy as np

from cerebro.data.columns import Array
from cerebro.errors import DataError

_HEADER, _TAG = 128, 8
_MATRIX, _COMPRESSED = 14, 15
_CHUNK = 1 << 18
_MAX_NAME, _MAX_DIMENSIONS = 1 << 10, 32
_COMPLEX = 0x0800

#: Type of stored numbers -> dtype, without the order of their bytes.
_TYPES = {
    1: "i1",
    2: "u1",
    3: "i2",
    4: "u2",
    5: "i4",
    6: "u4",
    7: "f4",
    9: "f8",
    12: "i8",
    13: "u8",
}
#: Class of an array -> dtype; one may be stored in a smaller type.
_CLASSES = {
    **{6: "f8", 7: "f4", 8: "i1", 9: "u1", 10: "i2", 11: "u2", 12: "i4", 13: "u4", 14: "i8"},
    15: "u8",
}


class _Stream(Protocol):
    def read(self, size: int, /) -> bytes: ...


@dataclass(frozen=True, slots=True)
class MatArray:
    """An array of a file, whose numbers have not been read yet."""

    name: str
    #: As MATLAB has it: rows of pictures are the last one.
    shape: tuple[int, ...]
    _stream: _Stream
    _stored: np.dtype[np.generic]
    _dtype: np.dtype[np.generic]

    def blocks(self, count: int) -> Iterator[Array]:
        """The array by its last dimension, so many of it at a time, all dimensions reversed."""
        inner = self.shape[-2::-1]
        each = math.prod(inner) * self._stored.itemsize
        for start in range(0, self.shape[-1], count):
            rows = min(count, self.shape[-1] - start)
            data = _exactly(self._stream, rows * each, self.name)
            yield np.frombuffer(data, self._stored).reshape(rows, *inner).astype(self._dtype)

    def whole(self) -> Array:
        """All of it, in one piece and as one row of numbers."""
        return np.concatenate([b.reshape(-1) for b in self.blocks(self.shape[-1] or 1)])


def read_mat(path: str) -> Iterator[MatArray]:
    """The arrays of numbers in a file, in order; each must be read before the next is asked for."""
    with open(path, "rb") as file:
        order = _read_header(file, path)
        while tag := file.read(_TAG):
            kind, size = _unpack(f"{order}II", tag, path)
            end = file.tell() + size
            stream: _Stream = file
            if kind == _COMPRESSED:
                stream = _Inflated(file, size, path)
                kind, _ = _unpack(f"{order}II", _exactly(stream, _TAG, path), path)
            found = _open_matrix(stream, order, path) if kind == _MATRIX else None
            if found is not None:
                yield found
            file.seek(end)


def _read_header(file: BinaryIO, path: str) -> str:
    """The order of bytes in a file, which must be one of version 5."""
    header = file.read(_HEADER)
    mark = header[126:128]
    order = {b"IM": "<", b"MI": ">"}.get(mark)
    if len(header) < _HEADER or order is None or b"7.3" in header[:116]:
        raise DataError(
            f"{path} must be a MATLAB file of version 5, but begins with {header[:20]!r}. "
            "Get it again."
        )
    return order


def _open_matrix(stream: _Stream, order: str, path: str) -> MatArray | None:
    """An array of numbers up to where its numbers begin; None if it is something else."""
    flags = _element(stream, order, path, at_most=16)
    word = _unpack(f"{order}I", flags[:4], path)[0]
    dtype = _CLASSES.get(word & 0xFF)
    if dtype is None or word & _COMPLEX:
        return None
    packed = _element(stream, order, path, at_most=4 * _MAX_DIMENSIONS)
    shape = _unpack(f"{order}{len(packed) // 4}i", packed, path)
    name = _element(stream, order, path, at_most=_MAX_NAME).decode("ascii", "replace")
    kind, size, inline = _element_tag(stream, order, path)
    if kind not in _TYPES or min(shape, default=-1) < 0:
        raise DataError(f"{path} is damaged: its array {name!r} cannot be read. Get it again.")
    stored = np.dtype(order + _TYPES[kind])
    if math.prod(shape) * stored.itemsize != size:
        raise DataError(
            f"{path} is damaged: its array {name!r} of shape {shape} must have "
            f"{math.prod(shape) * stored.itemsize} bytes, but has {size}. Get it again."
        )
    source = stream if inline is None else io.BytesIO(inline)
    return MatArray(name, shape, source, stored, np.dtype(dtype))


def _element(stream: _Stream, order: str, path: str, *, at_most: int) -> bytes:
    """The bytes of a small element, with what fills it up to eight left out."""
    _, size, inline = _element_tag(stream, order, path)
    if inline is not None:
        return inline
    if size > at_most:
        raise DataError(f"{path} is damaged: an element has {size} bytes. Get it again.")
    return _exactly(stream, -(-size // 8) * 8, path)[:size]


def _element_tag(stream: _Stream, order: str, path: str) -> tuple[int, int, bytes | None]:
    """Type and size of an element; one of up to four bytes may have them in its tag."""
    tag = _exactly(stream, _TAG, path)
    word, size = _unpack(f"{order}II", tag, path)
    if word >> 16:
        size = word >> 16
        return word & 0xFFFF, size, tag[4 : 4 + size]
    return word, size, None


class _Inflated:
    """What a compressed part of a file holds, unpacked as it is read."""

    def __init__(self, file: BinaryIO, size: int, path: str) -> None:
        self._file = file
        self._left = size
        self._path = path
        self._unpack = zlib.decompressobj()

    def read(self, size: int, /) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            part = self._some(size)
            if not part:
                break
            parts.append(part)
            size -= len(part)
        return b"".join(parts)

    def _some(self, size: int) -> bytes:
        while not self._unpack.eof:
            packed = self._unpack.unconsumed_tail
            if not packed:
                packed = self._file.read(min(_CHUNK, self._left))
                self._left -= len(packed)
            try:
                part = self._unpack.decompress(packed, size)
            except zlib.error as error:
                raise DataError(f"{self._path} is damaged: {error}. Get it again.") from error
            if part or not packed:
                return part
        return b""


def _exactly(stream: _Stream, size: int, where: str) -> bytes:
    data = stream.read(size)
    if len(data) != size:
        raise DataError(f"{where} ends too early: it is damaged. Get it again.")
    return data


def _unpack(form: str, data: bytes, path: str) -> tuple[int, ...]:
    try:
        return struct.unpack(form, data)
    except struct.error as error:
        raise DataError(f"{path} is damaged: {error}. Get it again.") from error
