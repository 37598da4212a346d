"""How soon a network is good enough: the race of the course assignment, on CPUs and on a GPU.

    python -m benchmarks.race [--json] [--data FILE.npz] [--cifar FOLDER] [--limit S] [--quick]
    python -m benchmarks.race [--json] --device cuda --cifar FOLDER

On CPUs: seconds from the start of a process to its exit, which is when the target was reached: 97 %
on MNIST (`--data`, else 90 % on the digits) and 70 % on CIFAR-10 (`--cifar`, a folder that `cerebro
data` knows; else left out). One thread in each of two processes on every side:

ours                     `cerebro run configs/race_*.yaml`, one gang of both
script, our recipe       a plain script (DDP over processes, DataLoader) with the same network,
                         rows, batches, rates and precision
script, as handed out    the same with what it is handed out with: mlp6 and plain SGD, 64 rows a
                         process; for CIFAR-10 the tutorial's network with Adam and its changes of
                         pictures. It begins no epoch after `--limit` seconds (75) and then counts
                         with what it took, as a lower bound
... (simulated)          three nodes, all of them processes of this machine

*Start-up* is all that is not between the first step and the last validation. Data are prepared
once, for all sides, and that is told apart. Saved weights of every side are judged by one function:
all that train by our recipe must have the target by it.

On one GPU: 16 variants of a residual network (learning rate, weight decay) to 92 % on CIFAR-10, all
of them trained to their end as one stack, against a plain eager script that trains one after the
other with the data on the card, channels last, bfloat16 on both sides. The script trains two, and
its time is scaled to 16; both sides' accuracies of these must agree. Losing case: the same script
with batches of 512.

Predicted, for CPUs: on MNIST start-up decides, and both are there in the time of some imports; the
recipe, not the system, is what makes the difference to the script that is handed out (10x and
more); on CIFAR-10 arithmetic decides, and ours with the same recipe is faster than the script by
what its DataLoader takes, 1.2x. Three nodes on two cores are slower than two processes.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from pathlib import Path

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np

from benchmarks import race_cpu, race_stacks
from benchmarks.report import Report
from cerebro import data as cdata

#: What the script that is handed out may train for, in seconds.
LIMIT_S, QUICK_LIMIT_S = 75.0, 10.0
ROUNDS = 3
DIGITS_TARGET = 0.9


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time to a good network")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--cifar", type=Path, help="folder with CIFAR-10; default: left out")
    parser.add_argument(
        "--limit", type=float, default=LIMIT_S, help="seconds for the script as handed out"
    )
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--quick", action="store_true", help="one round, little data, no bounds")
    return parser.parse_args()


def main() -> int:
    given = options()
    report = Report()
    with tempfile.TemporaryDirectory(prefix="cerebro-race-") as name:
        folder = Path(name)
        if given.device == "cuda":
            if given.cifar is None:
                raise SystemExit("--device cuda needs --cifar, a folder with CIFAR-10.")
            race_stacks.race(given.cifar, folder, report, is_quick=given.quick)
        else:
            on_cpus(given, folder, report)
    return report.finish(as_json=given.json)


def on_cpus(given: argparse.Namespace, folder: Path, report: Report) -> None:
    """MNIST or the digits, then CIFAR-10 if it is there."""
    limit_s = QUICK_LIMIT_S if given.quick or given.data is None else given.limit
    rounds = 1 if given.quick else ROUNDS
    race_cpu.race(first_case(given.data, folder, limit_s, rounds), report)
    if given.cifar is None:
        print("CIFAR-10 is left out: --cifar names a folder with it")
        return
    changes = ["goal.target=0.3", "data.n_train=2560", "data.n_valid=1000"] if given.quick else []
    race_cpu.race(case("cifar10", given.cifar, folder, changes, limit_s, rounds), report)


def first_case(file: Path | None, folder: Path, limit_s: float, rounds: int) -> race_cpu.Race:
    """The race on MNIST's pictures in a file, or on the digits without one."""
    source = folder / "mnist"
    write_mnist(source, file)
    if file is not None:
        return case("mnist", source, folder, [], limit_s, rounds)
    changes = [f"goal.target={DIGITS_TARGET}", "data.n_train=null"]
    return case("digits", source, folder, changes, limit_s, rounds)


def case(
    name: str, source: Path, folder: Path, changes: list[str], limit_s: float, rounds: int
) -> race_cpu.Race:
    """A race whose data are in `source`."""
    own = folder / f"race-{name}"
    own.mkdir()
    places = (f"data.source={source.resolve()}", f"data.prepared={own / 'prepared'}")
    return race_cpu.Race(
        name=name, folder=own, overrides=(*places, *changes), limit_s=limit_s, rounds=rounds
    )


def write_mnist(folder: Path, file: Path | None) -> None:
    """Pictures of 28 x 28 in the files that `cerebro data` looks for."""
    if file is None:
        digits = cdata.digits()
        x = np.round(digits["x"] * 255).astype(np.uint8).reshape(-1, 8, 8)
        x = np.pad(x.repeat(3, 1).repeat(3, 2), ((0, 0), (2, 2), (2, 2)))
        y, cut = digits["y"], len(x) // 5
        parts = {"t10k": (x[:cut], y[:cut]), "train": (x[cut:], y[cut:])}
    else:
        with np.load(file, allow_pickle=False) as arrays:
            parts = {
                name: (arrays[f"x_{split}"], arrays[f"y_{split}"])
                for name, split in (("train", "train"), ("t10k", "test"))
            }
    folder.mkdir()
    for name, (pictures, labels) in parts.items():
        write_idx(folder / f"{name}-images-idx3-ubyte", pictures)
        write_idx(folder / f"{name}-labels-idx1-ubyte", labels)


def write_idx(file: Path, values: np.ndarray) -> None:
    """Bytes in the format of MNIST's files."""
    head = bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">i4").tobytes()
    file.write_bytes(head + np.ascontiguousarray(values, np.uint8).tobytes())


if __name__ == "__main__":
    sys.exit(main())
