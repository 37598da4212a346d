"""What it gains to train many models of one structure as one.

    python -m benchmarks.stacks [--json] [--data FILE.npz] [--device cpu|cuda] [--quick]
        [--cases NAME ...]

Microseconds per model-step (one training step of one model) of our stacks of K members, against
the plain eager PyTorch loop in the same precision, JAX (jit, vmap and scan over the same batches,
where it is installed), our plain loop, and, as the case `processes`, several processes that share
the card. Every member has its own learning rate, initial weights and order of rows. Times are of
the loop over a visit's steps, losses read back; `with hop` is the whole visit with the state given
back to the host. On a CPU all times are CPU times of one thread. Sides take turns; a ratio is the
worse of that of the fastest rounds and that of the median rounds. On CUDA float32 products are TF32
on every side; `bf16` is autocast on both.

First of all, a stack's weights after a few steps in float32 are compared with those of plain
loops, and the losses with the eager loop's and JAX's; after the timed visits the first model of
every side must have reached the same loss. `first s` is the first visit, in which a step is traced,
captured and compiled. `auto` and `probe` are the numbers of members that a run
on one worker would choose; their regret is how much slower they are than the best that was
measured. `sweep` is a whole sweep, from a cold process to the leaderboard.

Pictures are those of `--data` (MNIST) or the digits; for the large CNN noise over ten patterns.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

# One thread on every side; it must be said before NumPy and torch are imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch

from benchmarks.peers import Peer
from benchmarks.report import Report
from benchmarks.stacks_cases import CPU, CUDA, PROCESSES, Case, Variant
from benchmarks.stacks_jax import JaxCommands, JaxSide, is_installed
from benchmarks.stacks_measure import (
    LOSS_TOLERANCE,
    TOLERANCE,
    Measured,
    check_equal,
    hold,
    loss_deviation,
    measure,
    tell,
)
from benchmarks.stacks_peers import Crowd, multi_process_service, servers
from benchmarks.stacks_sweep import sweep
from benchmarks.stacks_work import NETS, Eager, Ours, Pictures, Side, make_shard, rate_of
from benchmarks.workload import SEED
from cerebro import data as cdata
from cerebro.run.stacks import compose
from cerebro.task import ParamDict
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import SurveyCall

#: Steps of the comparison that comes first.
CHECKED_STEPS = 5
#: Of every trial, when auto weighs what to compile: three epochs of MNIST.
RUN_STEPS = 3 * 469


def options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="many models trained as one")
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--data", type=Path, help="npz like MNIST's; default: the digits")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda"], default="auto")
    parser.add_argument(
        "--cases",
        nargs="+",
        choices=sorted({*CPU, *CUDA, "processes", "sweep"}),
        help="default: all networks of the device, and on CUDA processes and sweep",
    )
    parser.add_argument("--quick", action="store_true", help="fewer rounds, sizes and variants")
    return parser.parse_args()


def main() -> int:
    given = options()
    torch.set_num_threads(1)
    device = given.device
    if device == "auto":
        device = "cuda" if torch.cuda.is_available() else "cpu"
    cases = CUDA if device == "cuda" else CPU
    report = Report()
    report.add("device", torch.cuda.get_device_name() if device == "cuda" else "cpu")
    bench = Bench(device, given.data, is_quick=given.quick, report=report)
    wanted = given.cases or [*cases, *(["processes", "sweep"] if device == "cuda" else [])]
    with jax_process(device, report) as bench.jax:
        for name in wanted:
            began = time.perf_counter()
            if name == "sweep":
                sweep(given.data, device, report)
            elif name == "processes":
                bench.processes()
            elif name in cases:
                bench.run(cases[name])
            else:
                raise SystemExit(f"{name} is no case for {device}: {', '.join(cases)}")
            print(f"  {name} took {time.perf_counter() - began:.0f} s\n", flush=True)
    return report.finish(as_json=given.json)


@contextmanager
def jax_process(device: str, report: Report) -> Iterator[Peer | None]:
    """A process with JAX, if it is installed."""
    if not is_installed():
        print("JAX is not installed: left out\n")
        yield None
        return
    peer = Peer(JaxCommands)
    try:
        found = peer.call("start", device)
        print(f"{found}\n")
        report.add("jax", found)
        yield peer
    finally:
        peer.close()


class Bench:
    """Measures one case after the other."""

    def __init__(self, device: str, file: Path | None, *, is_quick: bool, report: Report) -> None:
        self._device, self._file, self._report = device, file, report
        self._is_quick = is_quick
        self._rounds = 3 if is_quick else 5
        self.jax: Peer | None = None

    def run(self, case: Case) -> None:
        """One network."""
        net = case.net
        shard = make_shard(net, self._file)
        print(f"{net}, {self._device}, {NETS[net].steps} steps a visit")
        self._check(net)
        variants = list(case.variants(is_quick=self._is_quick))
        picked = self._pick(case, shard)
        variants += [v for v in dict.fromkeys(picked.values()) if v and v not in variants]
        sides: dict[str, Side] = {}
        for precision in case.precisions:
            name = "eager_bf16" if precision == "bf16" else "eager"
            sides[name] = Eager(net, shard, self._device, precision=precision)
        sides["plain"] = Ours(net, shard, self._device, 1, precision=case.precisions[0])
        own = [self._jax_side(case, v) for v in variants]
        sides |= {f"jax_{v.name}": side for v, side in zip(variants, own, strict=True) if side}
        for v in variants:
            sides[v.name] = Ours(
                net, shard, self._device, v.members, precision=v.precision, stack=v.stacking
            )
        found = measure(net, sides, self._rounds)
        for side in own:
            if side is not None:
                side.close()
        key = f"{self._device}_{net}"
        tell(key, found, self._report)
        self._report.gate(f"{key}_loss_off", loss_deviation(found), at_most=LOSS_TOLERANCE)
        self._regret(case, picked, found)
        for bound in case.bounds:
            hold(bound, found, self._report)

    def _check(self, net: str) -> None:
        """Equal results come first."""
        shard = make_shard(net, self._file, steps=CHECKED_STEPS)
        side = None
        if self.jax is not None and NETS[net].is_mlp:
            side = JaxSide(self.jax, net, self._file, 3, steps=CHECKED_STEPS)
        weights, where, losses = check_equal(net, shard, self._device, side)
        if side is not None:
            side.close()
        print(f"  after {CHECKED_STEPS} steps in float32 stacked and plain weights differ", end="")
        print(f" by {weights:.0e} ({where}), losses by {losses:.0e} (others' included)", flush=True)
        key = f"{self._device}_{net}"
        self._report.gate(f"{key}_weights_off", weights, at_most=TOLERANCE, digits=9)
        self._report.gate(f"{key}_first_losses_off", losses, at_most=TOLERANCE, digits=9)

    def _jax_side(self, case: Case, variant: Variant) -> JaxSide | None:
        is_default = variant.precision == case.precisions[0] and not variant.is_compiled
        if self.jax is None or variant.members not in case.jax or not is_default:
            return None
        return JaxSide(self.jax, case.net, self._file, variant.members, precision=variant.precision)

    def _pick(self, case: Case, shard: cdata.Shard) -> dict[str, Variant | None]:
        """What a run of so many trials on one worker would choose; None: not to stack."""
        found: dict[str, Variant | None] = {}
        for setting in case.regrets or ():
            trials = tuple(range(case.trials))
            call = SurveyCall(
                trials=trials,
                params=tuple(ParamDict(lr=rate_of(trial)) for trial in trials),
                batch_sizes=(NETS[case.net].batch,) * len(trials),
                seed=SEED,
                measure=setting == "probe",
            )
            precision = case.precisions[0]
            task = Pictures(case.net, precision)
            framework = TorchFramework(task, device=self._device, threads=1)
            survey = framework.survey(call, shard)
            steps = dict.fromkeys(trials, RUN_STEPS)
            plan = compose(survey, setting, workers=1, steps=steps).groups[0]
            if plan.obstacle:
                print(f"  {setting} does not stack: {plan.obstacle}")
            members = plan.members
            found[setting] = Variant(members, precision, plan.compiled) if members else None
        return found

    def _regret(self, case: Case, picked: dict[str, Variant | None], found: Measured) -> None:
        """How much slower than the best the choice is, by the fastest rounds."""
        ours = {
            name: min(times)
            for name, times in found.times.items()
            if name in found.whole and "bf16" not in name
        }
        if not any(variant and variant.is_compiled for variant in picked.values()):
            # Whether to compile depends on how long a run is, not on how fast a step is.
            ours = {name: time for name, time in ours.items() if "compiled" not in name}
        best = min(ours, key=ours.__getitem__)
        for setting, variant in picked.items():
            name = variant.name if variant else "plain"
            found.times[setting] = found.times[name]
            regret = ours[name] / ours[best] - 1
            limit = (case.regrets or {})[setting]
            key = f"{self._device}_{case.net}_{setting}"
            self._report.add(f"{key}_picks", name)
            self._report.gate(f"{key}_regret", regret, at_most=limit)
            words = f"must be <= {limit:g}, {'met' if regret <= limit else 'MISSED'}"
            print(f"  {setting} picks {name}; best is {best}; regret {regret:.3f}: {words}")

    def processes(self) -> None:
        """Several processes on one card, each with an eager loop of its own."""
        nets = ["mlp128_b128"] if self._is_quick else ["mlp128_b128", "mlp1024_b128", "cnn_b128"]
        self._crowd("", nets)
        with multi_process_service() as obstacle:
            if obstacle is None:
                try:
                    self._crowd("_mps", nets)
                except (OSError, EOFError, RuntimeError) as error:
                    obstacle = f"processes failed under it: {str(error).splitlines()[:1]}"
        self._report.add("mps", obstacle or "works")
        if obstacle is not None:
            print(f"CUDA MPS: {obstacle}")

    def _crowd(self, kind: str, nets: Sequence[str]) -> None:
        sizes = PROCESSES if self._device == "cuda" else (2,)
        with Crowd(max(sizes)) as crowd:
            for net in nets:
                crowd.begin(net, self._file, self._device, "tf32")
                if kind and not servers():
                    raise RuntimeError("no process uses it")
                alone = Eager(net, make_shard(net, self._file), self._device, precision="tf32")
                alone.visit()
                self._tell_crowd(crowd, net, kind, sizes, alone)

    def _tell_crowd(
        self, crowd: Crowd, net: str, kind: str, sizes: Sequence[int], alone: Eager
    ) -> None:
        visits, steps = (5 if NETS[net].is_mlp else 3), NETS[net].steps
        found = Measured({"eager": [], **{f"p{size}": [] for size in sizes}})
        for _ in range(self._rounds):
            found.times["eager"].append(alone.visit() / steps)
            for size in sizes:
                seconds = crowd.train(size, visits) / (size * visits * steps)
                found.times[f"p{size}"].append(seconds)
        for name, times in found.times.items():
            ratio = found.ratio(name, "eager")
            key = f"{self._device}_{net}_{name}{kind}"
            told = "" if ratio is None else f"{ratio:>9.2f} x eager"
            print(f"{key:<28}{1e6 * min(times):>10.1f} us/model-step{told}", flush=True)
            self._report.add(f"{key}_us", 1e6 * min(times))
            if ratio is not None:
                self._report.add(f"{key}_vs_eager", ratio)


if __name__ == "__main__":
    sys.exit(main())
