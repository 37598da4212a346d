"""Searches on a hundred workers, in simulated time."""

from __future__ import annotations

from itertools import pairwise

from benchmarks.report import Report
from cerebro.search import RandomSampler, parse_space
from cerebro.search.asha import rung_levels
from cerebro.search.conductor import Conductor
from cerebro.search.curves import power_law
from cerebro.search.simulator import simulate_search
from cerebro.search.stoppers import make_stopper
from cerebro.types import Mode

TRIALS, WORKERS, SHARDS = 1000, 100, 4
EPOCHS, ETA, GRACE = 27, 3, 1
BUSY = 0.95


def simulate(report: Report) -> None:
    """ASHA with as many trials under way as there are workers, and with twice as many."""
    print(f"\n{TRIALS} trials on {WORKERS} workers, simulated; visits of 1 to 2 s")
    print(
        f"{'under way':<11}{'busy proposing':>15}{'busy':>7}{'makespan s':>12}{'epochs':>8}", end=""
    )
    print("  trials per rung (and a third of the rung before)")
    for concurrent in (WORKERS, 2 * WORKERS):
        _simulate(concurrent, report)


def _simulate(concurrent: int, report: Report) -> None:
    space = parse_space({"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.0, 1.0]}})
    stopper = make_stopper(
        {"name": "asha", "eta": ETA, "grace": GRACE},
        metric="val_loss",
        mode=Mode.MIN,
        epochs=EPOCHS,
    )
    search = Conductor(
        RandomSampler(space, seed=0, num_trials=TRIALS),
        stopper,
        epochs=EPOCHS,
        concurrent=concurrent,
        objectives=[("val_loss", Mode.MIN)],
    )
    found = simulate_search(
        search,
        curve=power_law(0),
        workers=WORKERS,
        train_shards=SHARDS,
        visit_s=lambda trial: 1.0 + trial % 7 / 7,
    )
    busy = sum(found.busy) / WORKERS
    counts = [TRIALS, *(found.promotions[level] for level in rung_levels(GRACE, ETA, EPOCHS))]
    rungs = [f"{fewer} ({some // ETA})" for some, fewer in pairwise(counts)]
    print(f"{concurrent:<11}{found.busy_while_proposing:>15.3f}{busy:>7.3f}", end="")
    print(f"{found.makespan_s:>12.0f}{found.epochs:>8}  {TRIALS}, {', '.join(rungs)}", flush=True)
    key = f"simulated_{concurrent}"
    report.gate(f"{key}_busy_while_proposing", found.busy_while_proposing, at_least=BUSY)
    report.add(f"{key}_busy", busy)
    report.add(f"{key}_epochs", found.epochs)
    report.add(f"{key}_rungs", " ".join(map(str, counts)))
