"""What it costs to train one model with two workers, beside torchrun's DDP and one process.

    python -m benchmarks.ddp [--json] [--data FILE.npz] [--quick]

An MLP 784-hidden-10 with SGD and momentum on real pictures, global batch 128, one thread in each
process. Each side runs twice, for few epochs and for more: what the additional epochs take, in
seconds and in processor seconds of all its processes, is free of start-up, imports and the first
broadcast. Ours also compares replicas and writes a checkpoint an epoch, which the others do not; a
visit has 200 steps, of the largest model 100. Sides take turns. After the few epochs all have the
same weights, within the tolerance of sums in another order. *Bytes* are those that the loopback
device carried in the additional epochs, in a network namespace of the side's own where that can be
made (as root), so that nobody else is counted; the ring formula is 2 (n - 1) / n times the bytes of
the gradients, sent by each rank at each step. `--quick` compares weights and bytes: what its few
steps take is lost in that of two starts.

Predicted: the arithmetic is the same, and both average in buckets; ours gathers batches without an
allocation, and leaves out DDP's wrapper and its broadcast of buffers, so 0.95-1.05 of its processor
time; without a copy of large gradients 4 % less. Memory of 13 MB that is freed after each step and
cleared by the system for the next costs up to 3,200 page faults a rank, or some 3 ms of 33: workers
that keep it are even with DDP where they lost by 5 %. On two cores two workers are faster than one
where a step takes milliseconds, and slower where it takes microseconds (measured: faster from some
30 ms on, and not on every machine).
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# One thread and no GPU on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["CUDA_VISIBLE_DEVICES"] = ""

from benchmarks.report import Report
from benchmarks.workload import (
    SEED,
    WIDTH,
    Mlp,
    Weights,
    difference,
    load_pictures,
    load_weights,
    prepare,
    save_weights,
    weights_of,
)
from cerebro import Experiment
from cerebro.backend.local import LocalBackend

WORKERS = 2
SHARDS = 2
BATCH = 128
ROUNDS = 5
TOLERANCE = 1e-3
#: Of torchrun's DDP.
CPU_BOUND = 1.05
BYTES_BOUND = 0.05
TIMEOUT_S = 120


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One model."""

    name: str
    hidden: int
    rows: int
    epochs: tuple[int, int]

    @property
    def steps(self) -> int:
        """In the additional epochs."""
        few, many = self.epochs
        return (many - few) * SHARDS * -(-self.rows // BATCH)

    @property
    def params(self) -> dict[str, Any]:
        return {"lr": 0.01, "weight_decay": 1e-4, "hidden": self.hidden, "batch_size": BATCH}

    @property
    def gradient_bytes(self) -> int:
        return 4 * (WIDTH * self.hidden + self.hidden + self.hidden * 10 + 10)


CASES = (
    Case(name="tiny", hidden=32, rows=25600, epochs=(1, 6)),
    Case(name="middle", hidden=1024, rows=25600, epochs=(1, 3)),
    Case(name="large", hidden=4096, rows=12800, epochs=(1, 3)),
)
QUICK = (Case(name="middle", hidden=256, rows=6400, epochs=(1, 2)),)


@dataclass(frozen=True, slots=True)
class Cost:
    """Of one run of one side."""

    wall_s: float
    cpu_s: float
    bytes: int

    def __sub__(self, other: Cost) -> Cost:
        return Cost(self.wall_s - other.wall_s, self.cpu_s - other.cpu_s, self.bytes - other.bytes)


def main() -> int:
    parser = argparse.ArgumentParser(description="data-parallel training")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz with x_train, y_train; default: the digits")
    parser.add_argument("--quick", action="store_true", help="one small case, no times")
    parser.add_argument("--ours", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.ours:
        run_ours(json.loads(Path(options.ours).read_text()))
        return 0
    report = Report()
    pictures = load_pictures(options.data)
    for case in QUICK if options.quick else CASES:
        with tempfile.TemporaryDirectory(prefix="cerebro-ddp-") as folder:
            measure(case, Path(folder), pictures, report, is_quick=options.quick)
    return report.finish(as_json=options.json)


def measure(case: Case, folder: Path, pictures: Any, report: Report, *, is_quick: bool) -> None:
    """All sides of one case, in turns."""
    prepare(str(folder / "data"), pictures, shards=SHARDS, rows=case.rows)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--master-addr", "127.0.0.1"]
    script = ["-m", "benchmarks.ddp_script"]
    sides = {
        "ours": [sys.executable, "-m", "benchmarks.ddp", "--ours"],
        "torchrun": [*torchrun, "--nproc-per-node", str(WORKERS), *script],
        "one": [sys.executable, *script],
    }
    taken: dict[str, list[Cost]] = {side: [] for side in sides}
    weights: dict[str, Weights] = {}
    for number in range(1 if is_quick else ROUNDS):
        for side in sides if number % 2 else reversed(sides):
            few, many = case.epochs
            begun = run(sides[side], folder, side, case, few)
            weights[side] = load_weights(folder / f"{side}.npz")
            taken[side].append(run(sides[side], folder, side, case, many) - begun)
    for side in ("ours", "torchrun"):
        apart = difference(weights[side], weights["one"])
        if apart > TOLERANCE:
            raise SystemExit(f"{case.name}: {side} computed other weights than one ({apart:.2g})")
    print(f"{case.name}: {case.gradient_bytes / 1e6:.2f} MB of gradients, {case.steps} steps")
    if not is_quick:
        tell_times(case, taken, report)
    tell_bytes(case, taken, report)


def tell_times(case: Case, taken: dict[str, list[Cost]], report: Report) -> None:
    print(f"  {'side':<10}{'ms/step':>10}{'cpu ms/step':>13}")
    found: dict[str, tuple[float, float]] = {}
    for side, costs in taken.items():
        wall, cpu = (statistics.median(values) / case.steps for values in _columns(costs))
        found[side] = wall, cpu
        print(f"  {side:<10}{1e3 * wall:>10.3f}{1e3 * cpu:>13.3f}")
    (wall, cpu), (their_wall, their_cpu) = found["ours"], found["torchrun"]
    gain = found["one"][0] / wall
    print(f"  two workers are {gain:.2f}x as fast as one process" + (" (slower)" * (gain < 1)))
    report.add(f"{case.name}_gain", gain)
    report.gate(f"{case.name}_cpu_ratio", cpu / their_cpu, at_most=CPU_BOUND)
    report.add(f"{case.name}_wall_ratio", wall / their_wall)


def tell_bytes(case: Case, taken: dict[str, list[Cost]], report: Report) -> None:
    """What a rank sends at a step."""
    ring = 2 * (WORKERS - 1) / WORKERS * case.gradient_bytes
    print(f"  ring formula: {ring / 1e3:.1f} KB/step sent by a rank")
    sent: dict[str, float] = {}
    for side in ("ours", "torchrun"):
        sent[side] = statistics.median(cost.bytes for cost in taken[side]) / case.steps / WORKERS
        print(f"  {side}: {sent[side] / 1e3:.1f} KB/step")
    # Small gradients drown in the headers of packets, and all in what others send.
    bound = BYTES_BOUND if ring > 1e5 and _alone() else None
    report.gate(f"{case.name}_bytes_off", abs(sent["ours"] / ring - 1), at_most=bound)


def _columns(costs: list[Cost]) -> tuple[list[float], list[float]]:
    return [cost.wall_s for cost in costs], [cost.cpu_s for cost in costs]


def run(command: list[str], folder: Path, side: str, case: Case, epochs: int) -> Cost:
    """One run of one side, for so many epochs."""
    work = {
        "data": str(folder / "data"),
        "store": str(folder / f"runs-{side}-{epochs}-{time.monotonic_ns()}"),
        "params": case.params,
        "epochs": epochs,
        "out": str(folder / f"{side}.npz"),
    }
    file = folder / f"{side}.json"
    file.write_text(json.dumps(work))
    counted = [*_alone(), sys.executable, "-m", "benchmarks.ddp_counted", *command, str(file)]
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    done = subprocess.run(counted, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    wall_s = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{side} failed:\n{done.stderr[-2000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Cost(wall_s, cpu_s, int(done.stdout.split()[-1]))


def _alone() -> list[str]:
    """What puts a command into a network of its own, where that is allowed."""
    alone = ["unshare", "--net"]
    if not shutil.which(alone[0]):
        return []
    # Root may not either, as in most containers.
    tried = subprocess.run([*alone, "true"], capture_output=True, check=False)
    return [] if tried.returncode else alone


def run_ours(work: dict[str, Any]) -> None:
    """The same visits, as users ask for them."""
    params = {key: value for key, value in work["params"].items() if key != "batch_size"}
    experiment = Experiment(
        name="ddp",
        data=work["data"],
        store=work["store"],
        backend=LocalBackend(log_dir=work["store"]),
        workers=WORKERS,
        seed=SEED,
    )
    result = experiment.run_fit(
        Mlp(),
        params,
        num_epochs=work["epochs"],
        global_batch_size=work["params"]["batch_size"],
        parallel="ddp",
        metric="train_loss",
        mode="min",
        checkpoint="epoch",
        progress=False,
    )
    save_weights(work["out"], weights_of(result.load(0)))


if __name__ == "__main__":
    sys.exit(main())
