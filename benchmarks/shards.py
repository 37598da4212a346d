"""How fast shuffled batches come out of shards, against memcpy and against torch's DataLoader.

    python -m benchmarks.shards [--json] [--data FILE.npz]

All sides run in this process, one after the other in every round; the files are in the page cache.
First each side must give the same rows for the same order. A ratio is the worse of the ratio of the
fastest rounds and that of the median rounds.
"""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch
from torch.utils.data import DataLoader, TensorDataset

from benchmarks.report import Report, arguments, speedup
from benchmarks.workload import WIDTH, load_pictures
from cerebro import data as cdata

#: The largest shard for which the floors must hold; shards around it are reported.
SHARD_BYTES = 24_000_000
OTHER_BYTES = {"small": 12_000_000, "large": 188_000_000}
ROUNDS = 9
LOADER_ROUNDS = 5
MEMCPY_FLOOR, LOADER_FLOOR = 0.6, 10.0


@dataclass(frozen=True, slots=True)
class Case:
    """One line of the table."""

    dtype: str
    batch: int
    shard_bytes: int
    size: str

    @property
    def is_gated(self) -> bool:
        return not self.size

    @property
    def key(self) -> str:
        dtype = "f32" if self.dtype == "float32" else "u8"
        return "_".join(filter(None, (dtype, str(self.batch), self.size)))

    @property
    def rows(self) -> int:
        return self.shard_bytes // (WIDTH * np.dtype(self.dtype).itemsize)


CASES = [
    Case(dtype, batch, shard_bytes, size)
    for size, shard_bytes in {"": SHARD_BYTES, **OTHER_BYTES}.items()
    for dtype in ("float32", "uint8")
    for batch in (128, 1024)
]


def main() -> int:
    options = arguments("shuffled batches from shards")
    torch.set_num_threads(1)
    pictures, _ = load_pictures(options.data)
    report = Report()
    print(f"{'case':<16}{'shard MB':>9}{'ours GB/s':>11}{'memcpy GB/s':>13}", end="")
    print(f"{'ours/memcpy':>13}{'vs DataLoader':>15}")
    for case in CASES:
        measure(case, pictures, report)
    return report.finish(as_json=options.json)


def measure(case: Case, pictures: np.ndarray, report: Report) -> None:
    x = pictures[np.arange(case.rows) % len(pictures)].astype(case.dtype)
    y = np.arange(case.rows)
    with tempfile.TemporaryDirectory(prefix="cerebro-shards-") as folder:
        dataset = cdata.from_arrays(folder, {"x": x, "y": y}, shards=1)
        shard = dataset.open_shard("train", 0)
        order = cdata.batch_order(shard, case.batch, seed=0, trial=0, epoch=0)
        check_same_rows(shard, case.batch, order)
        ours, memcpy, both, loader = compete(shard, case, order)
    moved = case.rows * WIDTH * np.dtype(case.dtype).itemsize
    ratio, gain = speedup(memcpy, ours), speedup(loader, both)
    floors = (MEMCPY_FLOOR, LOADER_FLOOR) if case.is_gated else (None, None)
    report.gate(f"memcpy_ratio_{case.key}", ratio, at_least=floors[0])
    report.gate(f"dataloader_speedup_{case.key}", gain, at_least=floors[1], digits=1)
    report.add(f"gb_per_s_{case.key}", moved / min(ours) / 1e9, 2)
    print(f"{case.key:<16}{moved / 1e6:>9.0f}{moved / min(ours) / 1e9:>11.2f}", end="")
    print(f"{moved / min(memcpy) / 1e9:>13.2f}{ratio:>13.2f}{gain:>14.1f}x", flush=True)


def check_same_rows(shard: cdata.Shard, batch: int, order: np.ndarray) -> None:
    """Ours and the DataLoader's batches must be equal, batch by batch."""
    loader = make_loader(shard, batch, order)
    buffers = cdata.BatchBuffers(shard.schema, batch)
    for rows, theirs in zip(buffers.fill(shard, order), loader, strict=True):
        for name, tensor in zip(("x", "y"), theirs, strict=True):
            assert np.array_equal(buffers.tensors[name][:rows], tensor.numpy())


def compete(
    shard: cdata.Shard, case: Case, order: np.ndarray
) -> tuple[list[float], list[float], list[float], list[float]]:
    """Seconds for one pass over the shard, round by round.

    Ours and memcpy deliver x alone; then ours and the DataLoader deliver x and y.
    """
    x = np.asarray(shard.columns["x"])
    buffers = cdata.BatchBuffers({"x": shard.schema["x"]}, case.batch)
    both_buffers = cdata.BatchBuffers(shard.schema, case.batch)
    target = cdata.BatchBuffers({"x": shard.schema["x"]}, case.batch).tensors["x"]
    loader = make_loader(shard, case.batch, order)

    def ours() -> None:
        deque(buffers.fill(shard, order), maxlen=0)

    def both() -> None:
        deque(both_buffers.fill(shard, order), maxlen=0)

    def memcpy() -> None:
        for start in range(0, len(x), case.batch):
            rows = x[start : start + case.batch]
            target[: len(rows)] = rows

    def dataloader() -> None:
        deque(loader, maxlen=0)

    passes = max(1, SHARD_BYTES * 4 // x.nbytes)
    times: tuple[list[float], ...] = ([], [], [], [])
    gc.collect()
    gc.disable()
    for number in range(ROUNDS):
        if number < LOADER_ROUNDS:
            times[2].append(clock(both, passes))
            times[3].append(clock(dataloader, 1))
        ours()  # not timed: the loader's own copy of the data has filled the cache
        for side in (0, 1, 1, 0):
            times[side].append(clock((ours, memcpy)[side], passes))
    gc.enable()
    return times[0], times[1], times[2], times[3]


def make_loader(shard: cdata.Shard, batch: int, order: np.ndarray) -> DataLoader:
    x, y = (torch.from_numpy(np.array(shard.columns[name])) for name in ("x", "y"))
    return DataLoader(TensorDataset(x, y), batch, sampler=order.tolist(), num_workers=0)


def clock(work: Callable[[], None], passes: int) -> float:
    start = time.perf_counter()
    for _ in range(passes):
        work()
    return (time.perf_counter() - start) / passes


if __name__ == "__main__":
    sys.exit(main())
