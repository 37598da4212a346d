"""Model selection on two workers of Ray: ours, Ray Tune, and our own local backend.

    python -m benchmarks.ray [--json] [--data FILE.npz] [--rounds N] [--quick] [--case NAME]

1s     32 trials of an MLP, about 1 s of training each, on 4 shards: visits of 0.25 s
30s    8 trials of about 28 s: 7 epochs on 4 shards, visits of 1 s
bytes  what hops between two nodes of Ray cost the object store and the driver

ours        `Experiment(backend="ray").run_fit`, every visit durable before it counts
tune        Ray Tune as it comes: a process for each trial, the data in the object store once
            (`tune.with_parameters`), read there without a copy; no checkpoints, but final weights
tune_reuse  the same with processes that trials share (`reuse_actors=True`); 32 trials only
local       ours with `backend="local"`: what Ray costs

Time counts from the call, with nothing running yet, to its return; each side is a process of its
own, with Ray and torch imported before, in one environment that has nothing but Ray, torch and
Cerebro: Ray starts eight processes that import it, and what JupyterLab installs makes that import
take a second more. All do the same steps on the same rows in the same order:
final weights of ours and local must be equal to the bit, those of Tune within 1e-5. One round, 9
minutes; `--rounds` takes more of them, in turn.

*Efficiency* is the run's own account: time in training loops / (workers x time from the first
visit to the last). *Training* is the same for every side: time in training loops / (workers x time
from call to return). How bytes are counted is told in `ray_bytes`.

Predicted before the first measurement, on two cores:
- 1s: Tune takes 4 times as long as ours, as a process with torch takes longer to start than a trial
  to train; with shared processes 1.3 times; local 0.85, as Ray takes 4 s to start and to end.
- 30s: Tune takes 1.12 times as long, local 0.96. Efficiency with visits of 1 s: 0.98.
- bytes: a state more for each that is made or moved, and 1 kB; none for the driver, which hears
  10 kB a visit. A state of 51 kB takes twice its size, as it is kept out of the answers by padding.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.environment import RAY, ROOT, python_with
from benchmarks.peers import Pair
from benchmarks.ray_bytes import Moved
from benchmarks.ray_cases import BIG, LONG, SHORT, SMALL, WORKERS, Case, make_work
from benchmarks.ray_work import Took, Work
from benchmarks.report import Report, speedup
from benchmarks.workload import difference, load_pictures, load_weights

CASES = {"1s": [SHORT], "30s": [LONG], "bytes": [BIG, SMALL]}
#: Times Tune's makespan.
LEAST = {SHORT.name: 3.0, LONG.name: 1.1}
EFFICIENCY = 0.93
#: Bytes of the store for each byte of a state.
PER_STATE = 1.01
TOLERANCE = 1e-5
SIDE_S, END_S = 500.0, 30.0

Side = Callable[[Work, Path], Took]


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="model selection on Ray")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--rounds", type=int, default=1, help="how often each side runs")
    parser.add_argument("--quick", action="store_true", help="few short trials, no bounds")
    parser.add_argument("--case", choices=CASES, action="append", help="only this one")
    return parser.parse_args()


def main() -> int:
    given = options()
    torch.set_num_threads(1)
    pictures = load_pictures(given.data)
    report = Report()
    report.add("load", os.getloadavg()[0])
    sides = sides_of()
    with tempfile.TemporaryDirectory(prefix="cerebro-ray-") as name:
        folder = Path(name)
        cases = [case for name in given.case or CASES for case in CASES[name]]
        if given.quick:
            cases = [case.shortened() for case in cases]
        with Pair() as pair:
            works = {case.name: make_work(case, pair, pictures, folder) for case in cases}
        for case in cases:
            if case.name in LEAST:
                taking = {name: sides[name] for name in sides if takes_part(name, case)}
                took = compare(case, works[case.name], taking, folder, given.rounds)
                tell(case, took, report, is_gated=not given.quick)
        if BIG.name in works:
            count_bytes([works[BIG.name], works[SMALL.name]], folder, report)
    return report.finish(as_json=given.json)


def sides_of() -> dict[str, Side]:
    """Who takes part."""
    both = python_with("ray_ours", RAY, "-e", f"{ROOT}[ray,torch]")
    if both is None:
        print("Ray Tune is left out")
    python = str(both or sys.executable)
    found: dict[str, Side] = {"ours": lambda work, file: ours(python, work, file, "ray")}
    if both is not None:
        found["tune"] = lambda work, file: tune(python, work, file)
        found["tune_reuse"] = lambda work, file: tune(python, work, file, "reuse")
    found["local"] = lambda work, file: ours(python, work, file, "local")
    return found


def takes_part(side: str, case: Case) -> bool:
    """Processes that trials share matter to short trials."""
    return side != "tune_reuse" or case.name == SHORT.name


def ours(python: str, work: Work, file: Path, backend: str) -> Took:
    work.save(file)
    return Took(**answer_of(python, "benchmarks.ray_ours", str(file), backend))


def tune(python: str, work: Work, file: Path, *words: str) -> Took:
    work.save(file)
    return Took(**answer_of(python, "benchmarks.ray_tune", str(file), *words))


def answer_of(python: str, module: str, *words: str) -> Any:
    """What a module prints last when it is run, as JSON; it has so much time."""
    program = [python, "-W", "ignore", "-m", module, *words]
    with subprocess.Popen(
        program, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            printed, errors = process.communicate(timeout=SIDE_S)
        except subprocess.TimeoutExpired:
            # At SIGTERM Ray ends what it has started.
            process.terminate()
            try:
                process.wait(END_S)
            except subprocess.TimeoutExpired:
                process.kill()
            raise SystemExit(f"{module} must end in {SIDE_S:.0f} s, but did not") from None
    if process.returncode:
        raise SystemExit(f"{module} failed:\n{errors[-2000:]}")
    return json.loads(printed.splitlines()[-1])


def compare(
    case: Case, work: Work, sides: Mapping[str, Side], folder: Path, rounds: int
) -> dict[str, list[Took]]:
    """All sides in turn, and whether they found the same."""
    took: dict[str, list[Took]] = {name: [] for name in sides}
    print(f"\n{case.name}: {case.trials} trials of {case.trial_s:.1f} s, ", end="")
    print(f"visits of {case.visit_s:g} s")
    print(f"{'side':<12}{'call s':>8}{'start s':>9}{'training':>10}{'efficiency':>12}   load")
    for number in range(rounds):
        # Nobody is always the first.
        names = list(sides) if number % 2 == 0 else list(sides)[::-1]
        for name in names:
            place = folder / case.name / f"{name}-weights"
            place.mkdir(exist_ok=True)
            mine = replace(work, weights=str(place))
            one = sides[name](mine, folder / "work.json")
            took[name].append(one)
            own = "" if one.efficiency is None else f"{one.efficiency:.4f}"
            print(f"{name:<12}{one.call_s:>8.1f}{one.setup_s:>9.1f}", end="")
            print(f"{one.share(WORKERS):>10.3f}{own:>12}{os.getloadavg()[0]:>7.1f}", flush=True)
        check(case, list(sides), folder)
    return took


def check(case: Case, sides: Sequence[str], folder: Path) -> None:
    """Final weights must be those of our local backend, but for the order of sums."""
    for name in sides:
        apart = max(
            difference(*(load_weights(place / f"{trial}.npz") for place in places))
            for places in [[folder / case.name / f"{n}-weights" for n in (name, "local")]]
            for trial in range(case.trials)
        )
        most = 0.0 if name == "ours" else TOLERANCE
        if not apart <= most:
            raise SystemExit(f"{name}, {case.name}: weights differ by {apart:.2g}, not {most:g}")


def tell(case: Case, took: Mapping[str, Sequence[Took]], report: Report, *, is_gated: bool) -> None:
    """How many times as long as ours the others took, and how long a visit is."""
    own = [one.call_s for one in took["ours"]]
    for name, all_of_it in took.items():
        calls = [one.call_s for one in all_of_it]
        report.add(f"{name}_{case.name}_s", statistics.median(calls), 2)
        report.add(f"{name}_{case.name}_training", _median(all_of_it, "share"), 3)
        if name == "ours":
            continue
        ratio = speedup(calls, own)
        least = LEAST[case.name] if is_gated and name == "tune" else None
        report.gate(f"vs_{name}_{case.name}", ratio, at_least=least, digits=2)
        print(f"{name} takes {ratio:.2f} times as long as ours", flush=True)
    for name in ("ours", "local"):
        report.add(f"{name}_{case.name}_visit_ms", 1e3 * _median(took[name], "visit_s"), 1)
        is_bound = is_gated and name == "ours" and case.name == LONG.name
        report.gate(
            f"{name}_{case.name}_efficiency",
            _median(took[name], "efficiency"),
            at_least=EFFICIENCY if is_bound else None,
            digits=4,
        )


def _median(took: Sequence[Took], field: str) -> float:
    if field == "share":
        return statistics.median(one.share(WORKERS) for one in took)
    return statistics.median(getattr(one, field) for one in took)


def count_bytes(works: Sequence[Work], folder: Path, report: Report) -> None:
    """Hops between nodes, with states that are large, and that are small."""
    files = [folder / f"bytes-{number}.json" for number in range(len(works))]
    for work, file in zip(works, files, strict=True):
        work.save(file)
    told = answer_of(sys.executable, "benchmarks.ray_bytes", *map(str, files))
    big, small = (Moved(**each) for each in told)
    print(f"\n{'bytes of':<10}{'state':>10}{'visits':>8}{'hops':>6}{'objects':>9}", end="")
    print(f"{'in store, each':>16}{'to the driver':>15}{'of all states':>15}")
    for name, one in (("big", big), ("small", small)):
        came = one.driver_stored + one.driver_received
        print(f"{name:<10}{one.state:>10}{one.visits:>8}{one.hops:>6}{one.objects:>9}", end="")
        print(f"{one.per_object:>16.0f}{came:>15}{one.visits * one.state:>15}", flush=True)
        report.add(f"{name}_state_bytes", one.state)
        report.add(f"{name}_hops", one.hops)
        report.add(f"{name}_driver_bytes_per_visit", came / one.visits, 0)
    report.gate("big_store_per_state", big.per_object / big.state, at_most=PER_STATE, digits=5)
    report.add("small_store_per_state", small.per_object / small.state, 2)
    report.gate("driver_state_bytes", big.driver_states * big.state, at_most=0)


if __name__ == "__main__":
    sys.exit(main())
