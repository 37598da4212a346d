"""What the monitor counts, against what was really sent and written, and what GPUs tell it."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from cerebro.track.monitor.gpu import Gpus
from cerebro.track.monitor.sampler import Sampler

PIECE = b"x" * 50_000
PIECES = 80
TOTAL = PIECES * len(PIECE)
#: NVIDIA's library as far as it is called, with two GPUs. The second does not tell its power.
NVML = """\
#include <stdint.h>
#include <string.h>
typedef struct { unsigned gpu, memory; } rates;
typedef struct { unsigned version; unsigned long long total, reserved, free, used; } memory;
static int up = 0;
int nvmlInit_v2(void) { up = 1; return 0; }
int nvmlShutdown(void) { up = 0; return 0; }
int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return up ? 0 : 1; }
int nvmlDeviceGetHandleByIndex_v2(unsigned number, void **handle) {
    *handle = (void *)(uintptr_t)(0x700000000000 + number);
    return 0;
}
static unsigned which(void *handle) { return (unsigned)((uintptr_t)handle - 0x700000000000); }
int nvmlDeviceGetUtilizationRates(void *handle, rates *into) {
    into->gpu = 40 + which(handle);
    into->memory = 7;
    return up ? 0 : 1;
}
int nvmlDeviceGetMemoryInfo_v2(void *handle, memory *into) {
    if (into->version != (sizeof(memory) | 2u << 24)) return 2;
    into->used = 10000000000ull + which(handle);
    return up ? 0 : 1;
}
int nvmlDeviceGetPowerUsage(void *handle, unsigned *milliwatts) {
    *milliwatts = 312500;
    return up && which(handle) == 0 ? 0 : 3;
}
"""


def send_to_ourselves() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        socket.create_connection(server.getsockname()) as one,
        server.accept()[0] as other,
    ):
        for _ in range(PIECES):
            one.sendall(PIECE)
            left = len(PIECE)
            while left:
                left -= len(other.recv(left))


def written_by_us() -> int:
    lines = Path("/proc/self/io").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("write_bytes"))


def test_what_is_sent_over_a_network_is_counted_both_ways() -> None:
    sampler = Sampler(os.getpid())
    try:
        sampler.sample()
        send_to_ourselves()
        values = sampler.sample().values
    finally:
        sampler.close()
    assert values["network/lo/in"] >= TOTAL
    assert values["network/lo/out"] >= TOTAL


def test_what_is_written_to_a_disk_is_counted(tmp_path: Path) -> None:
    sampler = Sampler(os.getpid())
    try:
        sampler.sample()
        before = written_by_us()
        with (tmp_path / "file").open("wb") as file:
            file.write(PIECE * PIECES)
            file.flush()
            os.fsync(file.fileno())
        if written_by_us() - before < TOTAL:
            pytest.skip("files of tests are not on a disk here")
        values = sampler.sample().values
    finally:
        sampler.close()
    assert values["disk/tree_written"] >= TOTAL
    assert {"disk/read", "disk/written", "disk/tree_read"} <= values.keys()


def test_of_gpus_it_is_known_what_each_of_them_tells(tmp_path: Path) -> None:
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source, library = tmp_path / "nvml.c", tmp_path / "libnvml.so"
    source.write_text(NVML)
    subprocess.run([compiler, "-shared", "-fPIC", "-o", library, source], check=True)
    gpus = Gpus(str(library))
    try:
        assert gpus.count == 2
        assert gpus.read() == {
            "gpu/0/util": 40.0,
            "gpu/0/memory": 10_000_000_000.0,
            "gpu/0/power": 312.5,
            "gpu/1/util": 41.0,
            "gpu/1/memory": 10_000_000_001.0,
        }
    finally:
        gpus.close()
    assert gpus.read() == {}
