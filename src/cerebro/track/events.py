"""TensorBoard event records, encoded by hand.

A general protobuf writer costs some 80 us a scalar. The scalars of one tag, be they of one trial
or of a whole stack, differ only in their value and step, so they are laid out as the rows of one
byte matrix, and because CRC-32C is linear their checksums are one table lookup per varying byte.
File format: TFRecord frames around ``tensorflow.Event`` messages.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Mapping
from functools import cache

import numpy as np
import numpy.typing as npt

from cerebro.track.graph import GraphNode
from cerebro.types import Json

MAX_STEP = (1 << 35) - 1
_STEP_BYTES = 5
_TAIL_BYTES = 4 + 1 + _STEP_BYTES  # simple_value, the step's field number, step
_DOUBLE = struct.Struct("<d")
_FLOAT = struct.Struct("<f")
_FRAME = struct.Struct("<QI")
_CRC = struct.Struct("<I")
_SHIFTS = np.arange(0, 7 * _STEP_BYTES, 7, dtype=np.int64)
_MORE = np.array([0x80] * (_STEP_BYTES - 1) + [0], dtype=np.int64)
_COLUMNS = np.arange(_TAIL_BYTES)


def _crc_table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc >> 1) ^ (0x82F63B78 if crc & 1 else 0)
        table.append(crc)
    return tuple(table)


_TABLE = _crc_table()


def _crc_state(data: bytes, state: int = 0xFFFFFFFF) -> int:
    table = _TABLE
    for byte in data:
        state = table[(state ^ byte) & 0xFF] ^ (state >> 8)
    return state


@cache
def _tail_table() -> npt.NDArray[np.uint32]:
    """Row i: what each value of the i-th byte of the tail adds (xor) to the final checksum."""
    rows = np.empty((_TAIL_BYTES, 256), dtype=np.uint32)
    rows[-1] = table = np.array(_TABLE, dtype=np.uint32)
    for i in range(_TAIL_BYTES - 2, -1, -1):
        rows[i] = table[rows[i + 1] & 0xFF] ^ (rows[i + 1] >> 8)
    return rows


def crc32c(data: bytes) -> int:
    """The Castagnoli checksum.

    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    """
    return _crc_state(data) ^ 0xFFFFFFFF


def _masked(crc: int) -> int:
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


@cache
def _head(length: int) -> bytes:
    return _FRAME.pack(length, _masked(crc32c(length.to_bytes(8, "little"))))


def _frame(event: bytes) -> bytes:
    return _head(len(event)) + event + _CRC.pack(_masked(crc32c(event)))


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")


def _message(field: int, body: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(body)) + body


def _double(field: int, value: float) -> bytes:
    return _varint(field << 3 | 1) + _DOUBLE.pack(value)


def scalars(tag: str, steps: npt.ArrayLike, values: npt.ArrayLike, *, wall_time: float) -> bytes:
    """The records of one tag, all of one length, one after the other; empty for no values.

    >>> len(scalars("train/loss", [0, 1], [0.5, 0.25], wall_time=0.0))
    104
    """
    column = np.asarray(values)
    if column.dtype != np.float32:
        with np.errstate(over="ignore"):  # what has no room in float32 becomes infinite
            column = column.astype(np.float32)
    column = np.ascontiguousarray(column, dtype="<f4").reshape(-1, 1)
    numbers = np.asarray(steps, dtype=np.int64).reshape(-1, 1)
    count = len(column)
    # Too high a bit anywhere, the sign's included, is in the union of them all.
    if not 0 <= int(np.bitwise_or.reduce(numbers, axis=None)) <= MAX_STEP:
        got = f"steps from {numbers.min()} to {numbers.max()}"
        raise ValueError(f"`0 <= step <= {MAX_STEP}` must hold, but got {got}.")
    # The step goes last (protobuf fields may come in any order): then all that varies is a tail
    # of constant length, whatever the tag. Its varint is padded to five bytes, which is valid.
    value = _message(1, _utf8(tag)) + b"\x15" + bytes(4)
    event = _double(1, wall_time) + _message(5, _message(1, value))
    length = len(event) + 1 + _STEP_BYTES
    head = _head(length)
    tail = len(head) + length - _TAIL_BYTES
    rows = np.zeros((count, len(head) + length + 4), dtype=np.uint8)
    rows[:, :tail] = np.frombuffer((head + event)[:tail], dtype=np.uint8)
    rows[:, tail : tail + 4] = column.view(np.uint8)
    rows[:, tail + 4] = 0x10
    rows[:, tail + 5 : -4] = (numbers >> _SHIFTS) & 0x7F | _MORE
    base = _crc_state(bytes(_TAIL_BYTES), _crc_state(event[:-4])) ^ 0xFFFFFFFF
    parts = _tail_table()[_COLUMNS, rows[:, tail:-4]]
    crc = np.bitwise_xor.reduce(parts, axis=1) ^ np.uint32(base)
    masked = ((crc >> 15) | (crc << 17)) + np.uint32(0xA282EAD8)
    rows[:, -4:] = masked.astype("<u4").reshape(-1, 1).view(np.uint8)
    return rows.tobytes()


def scalar(tag: str, step: int, value: float, *, wall_time: float) -> bytes:
    """One record; cheaper than ``scalars`` for a single value."""
    try:
        small = _FLOAT.pack(value)
    except OverflowError:  # no room in float32
        small = _FLOAT.pack(math.copysign(math.inf, value))
    body = _message(1, _utf8(tag)) + b"\x15" + small
    event = _double(1, wall_time) + b"\x10" + _varint(step) + _message(5, _message(1, body))
    return _frame(event)


def file_version(*, wall_time: float) -> bytes:
    """The record every event file begins with."""
    return _frame(_double(1, wall_time) + _message(3, b"brain.Event:2"))


def session_restart(step: int, *, wall_time: float) -> bytes:
    """Tells TensorBoard to forget what an earlier file said about ``step`` and later."""
    return _frame(_double(1, wall_time) + b"\x10" + _varint(step) + _message(7, b"\x08\x01"))


def graph(nodes: Iterable[GraphNode], *, wall_time: float) -> bytes:
    """A model for the Graphs tab: a ``tensorflow.GraphDef``.

    >>> len(graph([GraphNode("input/x", "input", shape=(2, 3))], wall_time=0.0))
    81
    """
    body = b"".join(_message(1, _node(node)) for node in nodes)
    versions = _message(4, b"\x08\x16")
    return _frame(_double(1, wall_time) + _message(4, body + versions))


def _node(node: GraphNode) -> bytes:
    parts = [_message(1, _utf8(node.name)), _message(2, _utf8(node.op))]
    parts += [_message(3, _utf8(name)) for name in node.inputs]
    if node.shape is not None:
        dims = b"".join(_message(2, b"\x08" + _varint(size)) for size in node.shape)
        value = _message(1, _message(7, dims))
        parts.append(_message(5, _message(1, b"_output_shapes") + _message(2, value)))
    return b"".join(parts)


def hparams_start(params: Mapping[str, Json], *, wall_time: float) -> bytes:
    """The params of a trial for the HParams tab."""
    body = b"".join(
        _message(1, _message(1, _utf8(name)) + _message(2, _protobuf_value(value)))
        for name, value in params.items()
    )
    return _hparams("session_start_info", 3, body + _double(5, wall_time), wall_time)


def hparams_end(*, succeeded: bool, wall_time: float) -> bytes:
    """The end of a trial for the HParams tab."""
    status = b"\x08\x01" if succeeded else b"\x08\x02"
    return _hparams("session_end_info", 4, status + _double(2, wall_time), wall_time)


def _protobuf_value(value: Json) -> bytes:
    if isinstance(value, bool):
        return b"\x20\x01" if value else b"\x20\x00"
    if isinstance(value, float) or (isinstance(value, int) and value.bit_length() < 1000):
        return _double(2, float(value))
    return _message(3, _utf8(str(value)))


def _hparams(name: str, field: int, body: bytes, wall_time: float) -> bytes:
    plugin = _message(1, b"hparams") + _message(2, _message(field, body))
    value = _message(1, f"_hparams_/{name}".encode()) + _message(9, _message(1, plugin))
    return _frame(_double(1, wall_time) + _message(5, _message(1, value)))
