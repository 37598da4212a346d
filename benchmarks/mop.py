"""How much of two workers' time is training, and how that compares with other ways to do the work.

    python -m benchmarks.mop [--json] [--data FILE.npz]

16 trials of an MLP on 8 shards, 2 workers with one thread each, a durable checkpoint after every
visit, trackers as users get them. Visits of about 20 ms, 100 ms and 1 s: rows per shard are chosen
from the step time measured at the start. *Efficiency* is the run's own account: compute in workers
/ (workers x time from first dispatch to last answer). *Bare ratio* is the time of two processes
that do the same visits with nothing around them / that time; they are warm, our workers are new.

The other ways do the visits of the 100 ms case, or some of them (the table says how many; their
time is scaled to all). Final weights are compared before any time counts.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from importlib.util import find_spec
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.peers import Pair, Trial
from benchmarks.report import Report, arguments, speedup
from benchmarks.workload import (
    SEED,
    BareLoop,
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
WORKERS = 2
TOLERANCE = 1e-5
#: Two half batches are summed in another order at every step, and the difference grows.
DDP_TOLERANCE = 1e-3
#: The original's scheduler looked at its workers this often.
POLL_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Visits of one length."""

    name: str
    target_s: float
    efficiency: float
    hidden: int = 128
    batch: int = 128
    epochs: int = 1
    rounds: int = 3
    #: How many of the trials the two bare processes train; their time is scaled to all.
    bare_trials: int = 16

    @property
    def trials(self) -> list[Trial]:
        grid = trials_of(space(self.hidden))
        return [(n, {**params, "batch_size": self.batch}) for n, params in enumerate(grid)]

    @property
    def visits(self) -> int:
        return len(self.trials) * SHARDS * self.epochs


SHORT = Case(name="20ms", target_s=0.020, efficiency=0.85, epochs=2)
MEDIUM = Case(name="100ms", target_s=0.100, efficiency=0.96)
LONG = Case(
    name="1s", target_s=1.0, efficiency=0.985, hidden=512, batch=32, rounds=1, bare_trials=4
)


def main() -> int:
    options = arguments("model hopping on two workers")
    torch.set_num_threads(1)
    pictures = load_pictures(options.data)
    report = Report()
    print(
        f"{'visits':<8}{'ms':>7}{'efficiency':>12}{'hop':>7}{'wait':>7}{'data':>7}{'saving':>8}",
        end="",
    )
    print(f"{'makespan s':>12}{'bare s':>9}{'bare ratio':>12}")
    with Pair() as pair, tempfile.TemporaryDirectory(prefix="cerebro-mop-") as folder:
        for case in (SHORT, LONG, MEDIUM):
            data = calibrate(case, pair, pictures, os.path.join(folder, case.name))
            ours, reference = measure(case, pair, data, report)
        compare(MEDIUM, pair, data, (ours, reference), report)
    return report.finish(as_json=options.json)


def calibrate(case: Case, pair: Pair, pictures: tuple, folder: str) -> str:
    """Prepare shards whose visits take about as long as the case wants, and load them in peers."""
    sample, data = f"{folder}-sample", f"{folder}-data"
    prepare(sample, pictures, shards=SHARDS, rows=20 * case.batch)
    pair.call("load", sample)
    steps = max(2, round(case.target_s / pair.seconds_per_step(case.trials[0])))
    prepare(data, pictures, shards=SHARDS, rows=steps * case.batch)
    pair.call("load", data)
    return data


def measure(
    case: Case, pair: Pair, data: str, report: Report
) -> tuple[list[float], dict[int, list[Weights]]]:
    """Ours and the bare processes in turn; our makespans and the bare weights."""
    summaries: list[Mapping[str, Any]] = []
    bare: list[float] = []
    trained = case.trials[: case.bare_trials]
    for number in range(case.rounds):
        if number % 2:
            bare.append(pair.halves(trained, case.epochs))
        summary, weights = run_ours(case, data, number)
        summaries.append(summary)
        if not number % 2:
            bare.append(pair.halves(trained, case.epochs))
        reference = pair.weights()
        check(weights, reference, f"ours, {case.name}")
    scale = len(case.trials) / len(trained)
    makespans = [summary["makespan_s"] for summary in summaries]
    tell(case, summaries, [seconds * scale for seconds in bare], report)
    return makespans, reference


def run_ours(case: Case, data: str, number: int) -> tuple[Mapping[str, Any], dict[int, Weights]]:
    """One run as a user starts it; its summary and the final weights."""
    experiment = Experiment(
        name=f"round{number}", data=data, store=f"{data}-runs", workers=WORKERS, seed=SEED
    )
    result = experiment.run_fit(
        Mlp(),
        space(case.hidden),
        stack=False,
        num_epochs=case.epochs,
        batch_size=case.batch,
        metric="train_loss",
        mode="min",
        checkpoint="visit",
        progress=False,
    )
    weights: dict[int, Weights] = {}
    for trial in result.trials:
        assert {**trial.params, "batch_size": case.batch} == case.trials[trial.number][1]
        weights[trial.number] = weights_of(result.load(trial.number, which="final"))
    assert result.summary["visits"] == case.visits
    return result.summary, weights


def tell(case: Case, summaries: list[Mapping[str, Any]], bare: list[float], report: Report) -> None:
    """One line of the table and its keys."""
    parts = {
        part: statistics.median(s[f"{part}_s"] / s["capacity_s"] for s in summaries)
        for part in ("hop", "wait", "data", "checkpoint")
    }
    visit = statistics.median((s["compute_s"] + s["load_s"]) / s["visits"] for s in summaries)
    makespans = [s["makespan_s"] for s in summaries]
    efficiency = statistics.median(s["efficiency"] for s in summaries)
    ratio = speedup(bare, makespans)
    print(f"{case.name:<8}{1e3 * visit:>7.1f}{efficiency:>12.4f}", end="")
    print("".join(f"{100 * part:>6.2f}%" for part in parts.values()), end=" ")
    print(f"{min(makespans):>12.2f}{min(bare):>9.2f}{ratio:>12.3f}", flush=True)
    report.gate(f"efficiency_{case.name}", efficiency, at_least=case.efficiency, digits=4)
    if case is MEDIUM:
        report.add("efficiency", efficiency, 4)
    report.add(f"bare_ratio_{case.name}", ratio)
    report.add(f"visit_ms_{case.name}", 1e3 * visit, 1)
    for part, share in parts.items():
        report.add(f"{part}_share_{case.name}", share, 4)


def compare(
    case: Case,
    pair: Pair,
    data: str,
    done: tuple[list[float], dict[int, list[Weights]]],
    report: Report,
) -> None:
    """Other ways to do the same work, each once."""
    ours, reference = done
    trials, few = case.trials, case.trials[:2]
    print(f"\n{'same work, otherwise':<46}{'visits run':>11}{'s for all':>11}{'ours is':>10}")

    def way(name: str, key: str, ran: list[Trial], work: Callable[[str], float]) -> None:
        with tempfile.TemporaryDirectory(prefix="cerebro-peer-") as folder:
            seconds = work(folder) * len(trials) / len(ran)
        found = pair.weights() if key != "ray_tune" else dict(RAY_WEIGHTS)
        assert found.keys() == {number for number, _ in ran}
        final = {n: epochs[-1] for n, epochs in found.items()}
        check(final, reference, name, DDP_TOLERANCE if key == "ddp" else TOLERANCE)
        factor = seconds / statistics.median(ours)
        report.add(f"speedup_vs_{key}", factor, 2)
        visits = len(ran) * SHARDS * case.epochs
        print(f"{name:<46}{visits:>11}{seconds:>11.2f}{factor:>9.2f}x", flush=True)

    epochs = case.epochs
    way("one process", "sequential", trials, lambda _: pair.sequence(trials, epochs))
    way(
        "process pool, all data in each",
        "pool",
        trials,
        lambda _: pair.pool(trials, epochs),
    )
    way("hops through files", "file", trials, lambda f: pair.files(trials, epochs, f, 0))
    way(
        f"hops through files, polled every {POLL_S:.0f} s",
        "file_poll_2s",
        few,
        lambda f: pair.files(few, epochs, f, POLL_S),
    )
    way(
        "data parallel (DDP, gloo), trial by trial",
        "ddp",
        few,
        lambda f: pair.data_parallel(few, epochs, f),
    )
    if find_spec("ray") is None:
        report.add("speedup_vs_ray_tune", None)
        print("Ray Tune is not installed: left out")
    else:
        way("Ray Tune", "ray_tune", trials, lambda f: ray_tune(data, trials, epochs, f))


RAY_WEIGHTS: dict[int, list[Weights]] = {}


def ray_tune(data: str, trials: list[Trial], epochs: int, folder: str) -> float:
    """All trials with one CPU each; Ray itself is up before the clock starts."""
    ray, tune = import_module("ray"), import_module("ray.tune")

    def train(config: dict[str, Any], loop: BareLoop) -> None:
        torch.set_num_threads(1)
        weights, _ = loop.train(config["number"], config["params"], epochs=epochs)
        torch.save(
            {name: torch.from_numpy(value) for name, value in weights[-1].items()},
            os.path.join(folder, f"{config['number']}.pt"),
        )

    ray.init(num_cpus=WORKERS, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        grid = {
            "number": tune.grid_search([number for number, _ in trials]),
            "params": tune.sample_from(lambda spec: dict(trials[spec.config.number][1])),
        }
        trainable = tune.with_resources(
            tune.with_parameters(train, loop=BareLoop(data)), {"cpu": 1}
        )
        tuner = tune.Tuner(
            trainable,
            param_space=grid,
            run_config=tune.RunConfig(storage_path=os.path.join(folder, "ray"), verbose=0),
        )
        began = time.perf_counter()
        errors = tuner.fit().errors
        seconds = time.perf_counter() - began
    finally:
        ray.shutdown()
    if errors:
        raise RuntimeError(f"Ray Tune failed: {errors[0]}")
    for number, _ in trials:
        loaded = torch.load(os.path.join(folder, f"{number}.pt"))
        RAY_WEIGHTS[number] = [{name: tensor.numpy() for name, tensor in loaded.items()}]
    return seconds


def check(
    found: dict[int, Weights],
    reference: dict[int, list[Weights]],
    who: str,
    tolerance: float = TOLERANCE,
) -> None:
    """Weights of the trials both have must be equal, but for the order of sums."""
    common = found.keys() & reference.keys()
    assert common
    worst = max(difference(found[number], reference[number][-1]) for number in common)
    if not worst <= tolerance:
        raise SystemExit(f"{who}: weights differ by {worst:.2g}, more than {tolerance:.0e}")


if __name__ == "__main__":
    sys.exit(main())
