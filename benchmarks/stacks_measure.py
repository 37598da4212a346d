"""Sides of a case in turn: equal results first, then times, ratios and bounds."""

from __future__ import annotations

import gc
import math
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.report import Report, speedup
from benchmarks.stacks_jax import JaxSide
from benchmarks.stacks_work import NETS, Eager, Ours, Side
from cerebro import data as cdata
from cerebro.storage.stacked import take_member
from cerebro.storage.tensors import Layout
from cerebro.train.torch.buffer import view_of
from cerebro.train.visit import Stacking

#: How far weights may be apart after a few steps in float32, and losses; as in our tests.
TOLERANCE = 1e-4
_FLOOR = 1e-2
#: How far the mean losses of a visit may be apart after all visits, in any precision.
LOSS_TOLERANCE = 0.1
#: Visits before the clock counts: steps are traced, captured and compiled in them.
_WARM = 2
_CHECKED = 3


@dataclass(frozen=True, slots=True)
class Bound:
    """How many times faster than a reference the best of some sides must be, and should be."""

    key: str
    sides: tuple[str, ...]
    must: float
    aim: float | None = None
    #: "eager": of the same precision; "jax": with as many members.
    against: str = "eager"


@dataclass
class Measured:
    """Seconds per model-step of each side, round by round."""

    times: dict[str, list[float]] = field(default_factory=dict)
    #: The same with everything around the steps, where a side has that.
    whole: dict[str, list[float]] = field(default_factory=dict)
    #: Of the first visit: steps are traced, captured and compiled in it.
    first_s: dict[str, float] = field(default_factory=dict)
    losses: dict[str, float] = field(default_factory=dict)

    def ratio(self, side: str, reference: str) -> float | None:
        """How many times faster than the reference."""
        if reference not in self.times or side not in self.times or side == reference:
            return None
        return speedup(self.times[reference], self.times[side])


def eager_of(side: str) -> str:
    """The plain loop of the same precision."""
    return "eager_bf16" if "bf16" in side else "eager"


def jax_of(side: str) -> str:
    """JAX with as many members; it computes in the default precision."""
    return f"jax_{side.removesuffix('_compiled')}"


def measure(net: str, sides: Mapping[str, Side], rounds: int) -> Measured:
    """All sides in turn, forwards and backwards."""
    found = Measured(
        {name: [] for name in sides}, {n: [] for n, side in sides.items() if isinstance(side, Ours)}
    )
    for name, side in sides.items():
        began = time.perf_counter()
        side.visit()
        found.first_s[name] = time.perf_counter() - began
        for _ in range(_WARM - 1):
            side.visit()
        # Whoever waits for a compiler wants to know.
        print(f"  {name}: ready after {found.first_s[name]:.1f} s", file=sys.stderr, flush=True)
    names = list(sides)
    gc.collect()
    gc.disable()
    try:
        for number in range(rounds):
            for name in names if number % 2 else reversed(names):
                side = sides[name]
                steps = NETS[net].steps * side.members
                found.times[name].append(side.visit() / steps)
                if isinstance(side, Ours):
                    found.whole[name].append(side.all_s / steps)
    finally:
        gc.enable()
    found.losses = {name: statistics.fmean(side.losses) for name, side in sides.items()}
    return found


def loss_deviation(found: Measured) -> float:
    """After equal visits the first model of every side must have come equally far."""
    reference = found.losses["eager"]
    return max(_finite(abs(loss / reference - 1)) for loss in found.losses.values())


def check_equal(
    net: str, shard: cdata.Shard, device: str, jax: JaxSide | None
) -> tuple[float, str, float]:
    """A stack after a few steps in float32 against plain loops, the eager loop and JAX.

    The largest difference of any weight and where it is; the largest of any loss.
    """
    stack = Ours(net, shard, device, _CHECKED, stack=Stacking())
    stack.visit()
    weights, losses = (0.0, ""), 0.0
    for trial in range(_CHECKED):
        plain = Ours(net, shard, device, 1, first=trial)
        plain.visit()
        weights = max(weights, _difference(plain, stack, trial))
        eager = Eager(net, shard, device, trial=trial)
        eager.visit()
        losses = max(losses, _deviation(eager.losses, stack.all_losses[trial]))
    if jax is not None:
        jax.visit()
        for trial in range(_CHECKED):
            theirs = jax.all_losses[:, trial].tolist()
            losses = max(losses, _deviation(theirs, stack.all_losses[trial]))
    return *weights, losses


def _deviation(theirs: Sequence[float], ours: Sequence[float]) -> float:
    return max(_finite(abs(b / a - 1)) for a, b in zip(theirs, ours, strict=True))


def _finite(value: float) -> float:
    """What is no number is as far off as can be."""
    return value if math.isfinite(value) else math.inf


def _difference(plain: Ours, stack: Ours, trial: int) -> tuple[float, str]:
    """The largest difference of a tensor, relative to its norm, and the tensor's name."""
    assert plain.state is not None
    assert stack.state is not None
    data, _ = take_member(stack.state.buffer, stack.state.meta, trial)
    found, wanted = (_weights(memoryview(buffer)) for buffer in (data, plain.state.buffer))
    return max(
        (_finite(float((found[name] - tensor).norm() / (tensor.norm() + _FLOOR))), name)
        for name, tensor in wanted.items()
    )


def _weights(buffer: memoryview) -> dict[str, Any]:
    layout = Layout.parse(buffer)
    return {
        entry.name: view_of(layout, buffer, entry)
        for entry in layout.entries
        if entry.name.startswith("model.")
    }


def tell(case: str, found: Measured, report: Report) -> None:
    """The table of a case and its keys; what loses is in it as well."""
    has_bf16 = "eager_bf16" in found.times
    print(f"{'':<20}{'us/model-step':>14}{'with hop':>10}{'x eager':>9}", end="")
    print(f"{'x eager TF32':>14}" if has_bf16 else "", end="")
    print(f"{'x JAX':>8}{'loss':>8}{'first s':>9}")
    for name, times in found.times.items():
        whole = found.whole.get(name)
        ratios = {"eager": found.ratio(name, eager_of(name))}
        if has_bf16:
            ratios["eager_tf32"] = found.ratio(name, "eager")
        ratios["jax"] = found.ratio(name, jax_of(name))
        print(f"{name:<20}{1e6 * statistics.median(times):>14.2f}", end="")
        print(f"{1e6 * statistics.median(whole):>10.2f}" if whole else f"{'':>10}", end="")
        for reference, width in (("eager", 9), ("eager_tf32", 14), ("jax", 8)):
            if reference in ratios:
                value = ratios[reference]
                print(f"{'' if value is None else f'{value:.2f}':>{width}}", end="")
                if value is not None:
                    report.add(f"{case}_{name}_vs_{reference}", value)
        print(f"{found.losses[name]:>8.4f}{found.first_s[name]:>9.2f}", flush=True)
        report.add(f"{case}_{name}_us", 1e6 * statistics.median(times))
        if whole:
            report.add(f"{case}_{name}_with_hop_us", 1e6 * statistics.median(whole))
            report.add(f"{case}_{name}_first_s", found.first_s[name], 2)


def hold(bound: Bound, found: Measured, report: Report) -> None:
    """Say whether a bound is met, and by which side; nothing if it was not measured."""
    ratios = {
        name: found.ratio(name, jax_of(name) if bound.against == "jax" else eager_of(name))
        for name in bound.sides
    }
    known = {name: ratio for name, ratio in ratios.items() if ratio is not None}
    if not known:
        report.add(bound.key, None)
        print(f"  {bound.key}: not measured")
        return
    best = max(known, key=known.__getitem__)
    state_bound(bound.key, known[best], bound.must, bound.aim, report, note=f" ({best})")


def state_bound(
    key: str, value: float, must: float, aim: float | None, report: Report, note: str = ""
) -> None:
    """One line on one bound."""
    report.gate(key, value, at_least=must)
    words = f"must be >= {must:g}, {'met' if value >= must else 'MISSED'}"
    if aim is not None:
        words += f"; aim >= {aim:g}, {'met' if value >= aim else 'missed'}"
    print(f"  {key}: {value:.3g}{note}: {words}", flush=True)
