"""How soon a search finds a good network, against other systems that search the same way.

    python -m benchmarks.search [--json] [--data FILE.npz] [--repeats N] [--quick]

64 configurations of an MLP (learning rate, momentum, width) on MNIST, ASHA with rungs at 1 and 3
epochs of at most 9, two workers with one thread each. Time counts from the call, with nothing
running yet, until a trial has the target in validation: for ours until the call has returned, for
the others until the epoch was reported. Every repeat has another list of 64, the same for all
sides, which take turns. First each side trains one configuration for one epoch, and their
accuracies must agree; after every search, what was tried must be as in the list. At the end one
list is searched to its end, without a target (not with `--quick`).

ours          `Experiment.run_fit(stopper=asha, goal=...)`, a checkpoint after every epoch
ours_stacked  the same with trials stacked where that pays: all 64 begin before any is judged
optuna        Optuna's SuccessiveHalvingPruner around a plain loop in two processes; no checkpoints
ray           Ray Tune with ASHAScheduler; no checkpoints. Ray is installed into build/benchmarks
ray_reuse     the same with processes that trials share (`reuse_actors=True`)

Ray's and Optuna's ASHA stop trials, ours lets them wait at a rung and go on once they are among
the best: that is why it needs fewer epochs. `start s` is what it took until workers were there,
where that is known; it is part of the time on every side.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import torch

from benchmarks import search_optuna, search_ours, search_simulated
from benchmarks.environment import RAY, ROOT, python_with
from benchmarks.report import Report
from benchmarks.search_work import Found, Work
from cerebro import data as cdata
from cerebro.search import make_sampler

TRIALS = 64
EPOCHS, ETA, GRACE = 9, 3, 1
#: Validation accuracy to be reached: on MNIST, and on the digits.
TARGET, DIGITS_TARGET = 0.97, 0.95
NEVER = 2.0
#: How far accuracies after one epoch may be apart: batches and initial weights are others.
TOLERANCE = 0.015
CHECKED = {"lr": 0.1, "momentum": 0.9, "width": 128}

Side = Callable[[Work, int], Found]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="time to a good network")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--repeats", type=int, default=3, help="lists of 64 (default 3)")
    parser.add_argument("--quick", action="store_true", help="one repeat")
    return parser.parse_args()


def main() -> int:
    given = options()
    torch.set_num_threads(1)
    report = Report()
    report.add("load", os.getloadavg()[0])
    with tempfile.TemporaryDirectory(prefix="cerebro-search-") as name:
        folder = Path(name)
        work = prepare(given.data, folder)
        sides = sides_in(folder)
        check(work, sides, report)
        compare(work, sides, 1 if given.quick else given.repeats, report)
        if not given.quick:
            finish_all(work, sides, report)
    search_simulated.simulate(report)
    return report.finish(as_json=given.json)


def prepare(file: Path | None, folder: Path) -> Work:
    """One file with both splits, which all sides begin with."""
    if file is None:
        digits = cdata.digits()
        x, y = np.round(digits["x"] * 255).astype(np.uint8), digits["y"]
    else:
        with np.load(file, allow_pickle=False) as arrays:
            x, y = arrays["x_train"], arrays["y_train"]
    x, y = x.reshape(len(x), -1), y.astype(np.int64)
    order = np.random.default_rng(0).permutation(len(x))
    train, val = np.split(order, [5 * len(x) // 6])
    parts = {"x_train": x[train], "y_train": y[train], "x_val": x[val], "y_val": y[val]}
    np.savez(folder / "splits.npz", allow_pickle=False, **parts)
    search_ours.prepare(parts, folder)
    return Work(
        data=str(folder / "splits.npz"),
        params=[],
        target=DIGITS_TARGET if file is None else TARGET,
        epochs=EPOCHS,
        eta=ETA,
        grace=GRACE,
        batch_size=128,
        workers=2,
    )


def params_of(seed: int) -> list[dict[str, object]]:
    """The list of a repeat: what our random search proposes."""
    sampler = make_sampler("random", search_ours.SPACE, seed=seed, num_trials=TRIALS)
    return [dict(sampler.ask(number) or {}) for number in range(TRIALS)]


def sides_in(folder: Path) -> dict[str, Side]:
    """Who takes part."""
    found: dict[str, Side] = {
        "ours": lambda work, seed: search_ours.search(work, folder, seed, stack=False),
        "ours_stacked": lambda work, seed: search_ours.search(work, folder, seed, stack="auto"),
        "optuna": lambda work, seed: search_optuna.search(work),
    }
    python = python_with("ray", "numpy", "torch", RAY)
    if python is None:
        print("Ray Tune is left out")
    else:
        found["ray"] = lambda work, seed: ray_tune(python, work, folder)
        found["ray_reuse"] = lambda work, seed: ray_tune(python, work, folder, "reuse")
    return found


def ray_tune(python: Path, work: Work, folder: Path, *words: str) -> Found:
    work.save(folder / "work.json")
    program = [str(python), "-W", "ignore", "-m", "benchmarks.search_ray"]
    done = subprocess.run(
        [*program, str(folder / "work.json"), *words], cwd=ROOT, capture_output=True, text=True
    )
    if done.returncode:
        raise SystemExit(f"Ray Tune failed:\n{done.stderr[-2000:]}")
    return Found(**json.loads(done.stdout.splitlines()[-1]))


def check(work: Work, sides: Mapping[str, Side], report: Report) -> None:
    """One configuration, one epoch: all sides must do the same thing."""
    one = replace(work, params=[CHECKED], epochs=1, target=NEVER)
    found = {name: side(one, 0).best for name, side in sides.items()}
    apart = max(found.values()) - min(found.values())
    told = ", ".join(f"{name} {accuracy:.4f}" for name, accuracy in found.items())
    print(f"one configuration after one epoch: {told}", flush=True)
    report.add("check_apart", apart, 4)
    if not apart <= TOLERANCE:
        raise SystemExit(f"accuracies are {apart:.4f} apart, more than {TOLERANCE}")


def compare(work: Work, sides: Mapping[str, Side], repeats: int, report: Report) -> None:
    """The searches, in turn."""
    head()
    found: dict[str, list[Found]] = {name: [] for name in sides}
    for repeat in range(repeats):
        asked = replace(work, params=params_of(repeat))
        names = list(sides)
        # Nobody is always the first.
        for name in names[repeat % len(names) :] + names[: repeat % len(names)]:
            found[name].append(search(name, sides[name], asked, repeat))
    summarise(found, report)


def finish_all(work: Work, sides: Mapping[str, Side], report: Report) -> None:
    """One list to its end, each side once: no luck in who comes first."""
    print("\nall 64, whatever is reached", end="")
    head()
    asked = replace(work, params=params_of(0), target=NEVER)
    found = {name: search(name, side, asked, 0) for name, side in sides.items()}
    for name, one in found.items():
        if len(one.tried) != TRIALS:
            raise SystemExit(f"{name} tried {len(one.tried)} of {TRIALS}")
        ratio = one.call_s / found["ours"].call_s
        speed = one.epochs / one.call_s
        print(f"{name:<14}{ratio:>8.2f} times ours, {speed:.1f} epochs a second", flush=True)
        report.add(f"{name}_all_s", one.call_s, 1)
        report.add(f"{name}_all_epochs_per_s", speed, 2)
        if name != "ours":
            report.add(f"speedup_vs_{name}_all", ratio, 2)


def search(name: str, side: Side, work: Work, seed: int) -> Found:
    """Let a side search, and see to it that it tried what was asked."""
    found = side(work, seed)
    for trial, params in found.tried.items():
        if dict(params) != work.params[int(trial)]:
            raise SystemExit(f"{name}: t{trial} had other params: {params}")
    tell(name, found)
    return found


def head() -> None:
    print(f"\n{'side':<14}{'to target s':>12}{'returned s':>12}{'start s':>9}", end="")
    print(f"{'trials':>8}{'epochs':>8}{'best':>8}{'winner':>8}   load")


def tell(name: str, one: Found) -> None:
    reached = "never" if one.to_target_s is None else f"{one.to_target_s:.1f}"
    print(f"{name:<14}{reached:>12}{one.call_s:>12.1f}{one.setup_s:>9.1f}", end="")
    print(f"{len(one.tried):>8}{one.epochs:>8}{one.best:>8.4f}{one.winner:>8}", end="")
    print(f"{os.getloadavg()[0]:>7.1f}", flush=True)


def seconds_of(one: Found) -> float:
    """Time to the target; who never had it took as long as the whole search, at least."""
    return one.call_s if one.to_target_s is None else one.to_target_s


def summarise(found: Mapping[str, list[Found]], report: Report) -> None:
    """Medians, and how many times longer than ours the others took in the same repeat."""
    ours = [seconds_of(one) for one in found["ours"]]
    reached = [one.to_target_s is not None for one in found["ours"]]
    report.gate("ours_reached", sum(reached) / len(reached), at_least=1.0)
    print(f"\n{'median':<14}{'to target s':>12}{'epochs':>8}{'best':>8}{'times ours':>12}", end="")
    print(f"{'(least, most)':>16}")
    for name, all_of_it in found.items():
        times = [seconds_of(one) for one in all_of_it]
        epochs = statistics.median(one.epochs for one in all_of_it)
        best = statistics.median(one.best for one in all_of_it)
        ratios = [each / own for each, own in zip(times, ours, strict=True)]
        ratio = statistics.median(ratios)
        span = f"({min(ratios):.2f}, {max(ratios):.2f})"
        print(f"{name:<14}{statistics.median(times):>12.1f}{epochs:>8g}{best:>8.4f}", end="")
        print(f"{ratio:>11.2f}x{span:>16}", flush=True)
        report.add(f"{name}_to_target_s", statistics.median(times), 2)
        report.add(f"{name}_epochs", epochs)
        report.add(f"{name}_best", best, 4)
        if name != "ours":
            report.add(f"speedup_vs_{name}", ratio, 2)


if __name__ == "__main__":
    sys.exit(main())
