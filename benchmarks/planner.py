"""Cost and quality of planning, by simulation through the real planner; nothing is trained.

    python -m benchmarks.planner [--json] [--quick]

Every trial and worker differs: visits cost 0.36-21, workers have speeds 5.6-18.7. "homes" says
that each shard is held by one worker, so that locality and longest-first compete. Times are CPU
seconds of one process, the event loop of the simulation included.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import resource
import subprocess
import sys
import time
from typing import NamedTuple

from cerebro.mop import Costs, Outage, simulate

LIMIT_US = 5.0
LIMIT_RATIO = 1.02
LIMIT_SLOPE = 0.15
LIMIT_MB = 500.0


class Case(NamedTuple):
    """One plan to simulate; times are in seconds of the simulated run."""

    name: str
    trials: int
    workers: int
    shards: int
    homes: bool = False
    val_shards: int = 0
    epochs: int = 1
    durable: float | None = None
    lost: float = 0.0  #: share of the workers that leave, half of them for good
    repeat: int = 1
    seed: int = 0
    slow: float = 0.0  #: how many times slower the first worker is, where the others are alike

    @property
    def visits(self) -> int:
        return self.trials * self.epochs * (self.shards + self.val_shards)


class Measured(NamedTuple):
    """What one case showed."""

    us_per_decision: float
    ratio: float
    decisions: int
    peak_mb: float


GROWTH = [
    Case("10^3 visits", 32, 4, 32, repeat=20),
    Case("10^4 visits", 100, 10, 100, repeat=8),
    Case("10^5 visits", 320, 32, 313, repeat=3),
    Case("10^6 visits", 1000, 100, 1000),
    Case("10^7 visits", 10_000, 1000, 1000),
]
OTHERS = [
    Case("validation, 3 epochs", 1000, 100, 100, val_shards=10, epochs=3, homes=True),
    Case("checkpoints, 0.1 s to durable", 1000, 100, 100, durable=0.1),
    Case("checkpoints slower than visits", 1000, 100, 100, durable=1.0),
    Case("1% of the workers lost", 1000, 100, 1000, homes=True, lost=0.01),
    Case("more shards than workers", 1000, 100, 400, homes=True),
    Case("as many trials as workers", 100, 100, 100),
    Case("a small run", 16, 4, 8),
    Case("fewer trials than workers", 12, 16, 8),
    Case("one worker 4x slower", 8, 2, 8, epochs=3, slow=4.0),
    Case("one worker 8x slower", 32, 8, 8, epochs=3, slow=8.0),
]


def measure(case: Case) -> Measured:
    """Simulate a case; the best time of its repetitions."""
    rng = random.Random(case.seed)
    train = [rng.uniform(0.36, 21.0) for _ in range(case.trials)]
    speeds = [rng.uniform(5.6, 18.7) for _ in range(case.workers)]
    if case.slow:
        speeds = [1.0 / case.slow, *[1.0] * (case.workers - 1)]
    costs = Costs(
        train=train,
        speeds=speeds,
        train_shards=case.shards,
        val_shards=case.val_shards,
        epochs=case.epochs,
    )
    homes = [frozenset(range(w, case.shards, case.workers)) for w in range(case.workers)]
    span, outages = costs.lower_bound(), []
    for worker in rng.sample(range(case.workers), math.ceil(case.lost * case.workers)):
        back = span * 0.9 if worker % 2 else math.inf
        outages.append(Outage(worker, span * rng.uniform(0.1, 0.8), back))
    best = math.inf
    for _ in range(case.repeat):
        begin = time.process_time()
        result = simulate(
            costs, holds=homes if case.homes else None, outages=outages, durable=case.durable
        )
        best = min(best, time.process_time() - begin)
        assert result.finished
        assert result.decisions >= case.visits
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return Measured(best / result.decisions * 1e6, result.ratio, result.decisions, peak_mb)


def measure_apart(case: Case) -> Measured:
    """The same in a process of its own, whose peak memory is the case's."""
    command = [sys.executable, "-m", "benchmarks.planner", "--case", json.dumps(case)]
    answer = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    return Measured(*json.loads(answer))


def slope(points: list[tuple[int, float]]) -> float:
    """The exponent b of y ~ x^b, least squares."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(y) for _, y in points]
    mean_x, mean_y = sum(xs) / len(xs), sum(ys) / len(ys)
    rise = sum((x - mean_x) * (y - mean_y) for x, y in zip(xs, ys, strict=True))
    return rise / sum((x - mean_x) ** 2 for x in xs)


def show(case: Case, found: Measured) -> None:
    name = f"{case.name}, homes" if case.homes else case.name
    size = f"{case.trials} x {case.workers} x {case.shards}"
    print(
        f"{name:38} {size:>20} {found.decisions:>10,} {found.us_per_decision:>7.2f}"
        f" {found.ratio:>8.4f} {found.peak_mb:>6.0f}{'' if found.ratio <= LIMIT_RATIO else '  *'}",
        flush=True,
    )


def run(quick: bool) -> dict[str, object]:
    """Measure and print every case; the figures that are held to limits."""
    print(f"{'':38} {'trials workers shards':>20} decisions us/dec.    ratio     MB")
    growth = GROWTH[:-1] if quick else GROWTH
    found: dict[bool, list[Measured]] = {False: [], True: []}
    for homes in found:
        for case in growth:
            case = case._replace(homes=homes)
            found[homes].append(measure_apart(case))
            show(case, found[homes][-1])
    for case in OTHERS:
        show(case, measure_apart(case))
    print("ratio: makespan / lower bound, max(all work / all speed, k longest trials on the k")
    print(
        f"fastest workers). *: above {LIMIT_RATIO}. Speeds are not known before the first visits;"
    )
    print("and the bound knows nothing of checkpoints that outlast visits.")
    slopes = {
        homes: slope([(m.decisions, m.us_per_decision) for m in rows])
        for homes, rows in found.items()
    }
    plain, home = found[False][-1], found[True][-1]
    figures: dict[str, object] = {
        "visits": plain.decisions,
        "us_per_decision": round(plain.us_per_decision, 3),
        "us_per_decision_homes": round(home.us_per_decision, 3),
        "ratio": round(max(plain.ratio, home.ratio), 5),
        "slope": round(slopes[False], 4),
        "slope_homes": round(slopes[True], 4),
        "peak_mb": round(max(plain.peak_mb, home.peak_mb), 1),
    }
    figures["ok"] = (
        max(plain.us_per_decision, home.us_per_decision) <= LIMIT_US
        and max(plain.ratio, home.ratio) <= LIMIT_RATIO
        and max(slopes.values()) <= LIMIT_SLOPE
        and max(plain.peak_mb, home.peak_mb) <= LIMIT_MB
    )
    return figures


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--quick", action="store_true", help="leave out the plans of 10^7 visits")
    parser.add_argument("--case", help=argparse.SUPPRESS)
    # Every benchmark takes it; planning needs no data.
    parser.add_argument("--data", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.case:
        print(json.dumps(measure(Case(*json.loads(options.case)))))
        return 0
    figures = run(options.quick)
    if options.json:
        print(json.dumps(figures))
    else:
        print("\n".join(f"{name}: {value}" for name, value in figures.items()))
    return 0 if figures["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
