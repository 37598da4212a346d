from __future__ import annotations

import math
import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.track import events
from cerebro.types import Params


def fields(data: bytes) -> dict[int, list[int | bytes]]:
    """An independent protobuf reader: field number to raw values."""
    found: dict[int, list[int | bytes]] = {}
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if byte < 0x80:
                return value

    while at < len(data):
        key = varint()
        if key & 7 == 0:
            found.setdefault(key >> 3, []).append(varint())
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        found.setdefault(key >> 3, []).append(data[at : at + size])
        at += size
    return found


def slow_crc(data: bytes) -> int:
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def frames(data: bytes) -> list[bytes]:
    """Records of an event file, checksums checked."""
    out = []
    while data:
        (size,) = struct.unpack("<Q", data[:8])
        assert struct.unpack("<I", data[8:12])[0] == slow_crc(data[:8])
        body = data[12 : 12 + size]
        assert struct.unpack("<I", data[12 + size : 16 + size])[0] == slow_crc(body)
        out.append(body)
        data = data[16 + size :]
    return out


def read_scalar(event: bytes) -> tuple[str, int, float]:
    top = fields(event)
    value = fields(bytes(fields(bytes(top[5][0]))[1][0]))
    tag, raw = value[1][0], value[2][0]
    assert isinstance(tag, bytes)
    assert isinstance(raw, bytes)
    step = top[2][0]
    assert isinstance(step, int)
    return tag.decode(), step, struct.unpack("<f", raw)[0]


f32 = st.floats(width=32, allow_nan=False)
steps = st.integers(0, events.MAX_STEP - 100)


@given(st.text(max_size=200), steps, st.lists(f32, min_size=1, max_size=40))
@settings(deadline=None, max_examples=60)
def test_scalars_read_back_as_written(tag: str, first: int, values: list[float]) -> None:
    tag = tag.encode(errors="replace").decode()
    data = events.scalars(tag, first + np.arange(len(values)), values, wall_time=1.5e9)
    expected = [(tag, first + i, v) for i, v in enumerate(values)]
    assert [read_scalar(event) for event in frames(data)] == expected


@given(st.floats(), steps)
@settings(deadline=None, max_examples=60)
def test_a_single_scalar_reads_back_as_float32(value: float, step: int) -> None:
    (event,) = frames(events.scalar("epoch/x", step, value, wall_time=0.0))
    tag, at, got = read_scalar(event)
    with np.errstate(over="ignore"):
        want = float(np.float32(value))
    assert (tag, at) == ("epoch/x", step)
    assert got == want or (math.isnan(got) and math.isnan(want))


def test_no_values_give_no_bytes() -> None:
    assert events.scalars("t", (), (), wall_time=0.0) == b""


def test_a_step_out_of_range_is_refused() -> None:
    with pytest.raises(ValueError, match="0 <= step"):
        events.scalars("t", [-1], [1.0], wall_time=0.0)


@pytest.mark.parametrize("step", [events.MAX_STEP + 1, 2**62])
def test_a_step_too_large_is_refused(step: int) -> None:
    with pytest.raises(ValueError, match=f"to {step}"):
        events.scalars("t", [0, step], [1.0, 2.0], wall_time=0.0)


def test_the_largest_step_is_taken() -> None:
    (event,) = frames(events.scalars("t", [events.MAX_STEP], [1.0], wall_time=0.0))
    assert read_scalar(event) == ("t", events.MAX_STEP, 1.0)


def test_values_without_room_become_infinite() -> None:
    data = events.scalars("t", [0, 1], [1e300, -1e300], wall_time=0.0)
    assert [read_scalar(event)[2] for event in frames(data)] == [math.inf, -math.inf]


def test_params_read_back_by_type() -> None:
    params: Params = {"lr": 0.5, "n": 3, "on": True, "off": False, "name": "ü", "none": None}
    (event,) = frames(events.hparams_start(params, wall_time=2.0))
    value = fields(bytes(fields(bytes(fields(event)[5][0]))[1][0]))
    assert value[1] == [b"_hparams_/session_start_info"]
    plugin = fields(bytes(fields(bytes(value[9][0]))[1][0]))
    assert plugin[1] == [b"hparams"]
    info = fields(bytes(fields(bytes(plugin[2][0]))[3][0]))
    entries = [fields(bytes(entry)) for entry in info[1]]
    got = {bytes(e[1][0]).decode(): fields(bytes(e[2][0])) for e in entries}
    assert got == {
        "lr": {2: [struct.pack("<d", 0.5)]},
        "n": {2: [struct.pack("<d", 3.0)]},
        "on": {4: [1]},
        "off": {4: [0]},
        "name": {3: ["ü".encode()]},
        "none": {3: [b"None"]},
    }
