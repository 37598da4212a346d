"""What one trial on one worker pays for hopping, checkpoints and tracking.

    python -m benchmarks.overhead [--json] [--data FILE.npz]

Ours is a run as a user starts it: shuffled shards, visits of about 100 ms, a durable checkpoint
after each, trackers on; the time from first dispatch to last answer. The other side is the plain
PyTorch loop in a warm process of its own that takes the same rows in the same order, from tensors
in memory by `index_select`, and writes nothing; then the same loop with torch's DataLoader. Both
train with one thread. Final weights are compared before any time counts. A ratio is the worse of
that of the fastest rounds and that of the median rounds.

Predicted: 1.2 ms a visit for hop and messages gives 1.012 and more at batch 32, where the scalar of
every loss is read one by one; batches by a gather into a reused buffer win some of it back.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.peers import Peer, Trial
from benchmarks.report import Report, arguments, slowdown, speedup
from benchmarks.workload import (
    SEED,
    Mlp,
    Weights,
    difference,
    load_pictures,
    prepare,
    space,
    trials_of,
    weights_of,
)
from cerebro import Experiment

SHARDS = 8
EPOCHS = 4
ROUNDS = 5
VISIT_S = 0.1
HIDDEN = 128
TOLERANCE = 1e-5


@dataclass(frozen=True, slots=True)
class Case:
    """One batch size, and how much slower than the plain loop it may be."""

    batch: int
    limit: float

    @property
    def trial(self) -> Trial:
        return 0, {**trials_of(space(HIDDEN, 1))[0], "batch_size": self.batch}


CASES = [Case(128, 1.05), Case(32, 1.07)]


def main() -> int:
    options = arguments("one trial against the plain loop")
    torch.set_num_threads(1)
    pictures = load_pictures(options.data)
    report = Report()
    print(f"{'batch':<7}{'ms a visit':>11}{'ours s':>9}{'plain s':>9}{'DataLoader s':>14}", end="")
    print(f"{'ours/plain':>12}{'DataLoader/ours':>17}")
    plain, loader = Peer(), Peer()
    try:
        for case in CASES:
            with tempfile.TemporaryDirectory(prefix="cerebro-overhead-") as folder:
                measure(case, (plain, loader), pictures, folder, report)
    finally:
        plain.close()
        loader.close()
    return report.finish(as_json=options.json)


def measure(
    case: Case, peers: tuple[Peer, Peer], pictures: tuple, folder: str, report: Report
) -> None:
    """One line of the table: the sides in turn, forwards and backwards."""
    plain, loader = peers
    data = calibrate(case, plain, pictures, folder)
    for peer, gather in ((plain, "index_select"), (loader, "loader")):
        peer.call("load", data, gather)
        train(peer, case)  # not timed: the first steps of a process are slow
    times: dict[str, list[float]] = {"ours": [], "plain": [], "loader": []}
    visit_s: list[float] = []
    for number in range(ROUNDS):
        sides = ["plain", "ours", "loader"]
        for side in sides if number % 2 else reversed(sides):
            if side == "ours":
                seconds, visit, weights = run_ours(case, data, number)
                visit_s.append(visit)
            else:
                seconds, weights = train(plain if side == "plain" else loader, case)
            times[side].append(seconds)
            if number == 0 and side != "plain":
                check(weights, train(plain, case)[1], side)
    tell(case, times, statistics.median(visit_s), report)


def calibrate(case: Case, peer: Peer, pictures: tuple, folder: str) -> str:
    """Shards whose visits take about `VISIT_S`."""
    sample, data = os.path.join(folder, "sample"), os.path.join(folder, "data")
    prepare(sample, pictures, shards=SHARDS, rows=20 * case.batch)
    peer.call("load", sample, "index_select")
    steps = max(2, round(VISIT_S / peer.call("step_time", case.trial)))
    prepare(data, pictures, shards=SHARDS, rows=steps * case.batch)
    return data


def train(peer: Peer, case: Case) -> tuple[float, Weights]:
    """The whole training in a peer; wall time and final weights."""
    seconds = peer.call("train_timed", case.trial, EPOCHS)
    return seconds, peer.call("weights")[case.trial[0]][-1]


def run_ours(case: Case, data: str, number: int) -> tuple[float, float, Weights]:
    """Makespan, time in one visit's loop, final weights."""
    store = Path(data).parent / "runs"
    experiment = Experiment(
        name=f"b{case.batch}-{number}", data=data, store=str(store), workers=1, seed=SEED
    )
    result = experiment.run_fit(
        Mlp(),
        space(HIDDEN, 1),
        stack=False,
        num_epochs=EPOCHS,
        batch_size=case.batch,
        metric="train_loss",
        mode="min",
        checkpoint="visit",
        progress=False,
    )
    summary = result.summary
    weights = weights_of(result.load(0, which="final"))
    train_s = summary["compute_s"] + summary["load_s"]
    return summary["makespan_s"], train_s / summary["visits"], weights


def check(found: Weights, expected: Weights, who: str) -> None:
    worst = difference(found, expected)
    if not worst <= TOLERANCE:
        raise SystemExit(f"{who}: weights differ by {worst:.2g}, more than {TOLERANCE:.0e}")


def tell(case: Case, times: dict[str, list[float]], visit_s: float, report: Report) -> None:
    """One line of the table and its keys."""
    ratio = slowdown(times["ours"], times["plain"])
    gain = speedup(times["loader"], times["ours"])
    medians = [statistics.median(times[side]) for side in ("ours", "plain", "loader")]
    print(f"{case.batch:<7}{1e3 * visit_s:>11.1f}{medians[0]:>9.3f}{medians[1]:>9.3f}", end="")
    print(f"{medians[2]:>14.3f}{ratio:>12.3f}{gain:>17.2f}", flush=True)
    report.gate(f"overhead_{case.batch}", ratio, at_most=case.limit)
    report.gate(f"speedup_vs_dataloader_{case.batch}", gain, at_least=1.0)
    report.add(f"visit_ms_{case.batch}", 1e3 * visit_s, 1)


if __name__ == "__main__":
    sys.exit(main())
