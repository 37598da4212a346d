"""What more nodes and processes brought, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.bench.cases import Case, families
from cerebro.bench.phrases import (
    BUSY,
    FEW,
    Machine,
    Pair,
    at_batch,
    at_rule,
    bare_label,
    batches,
    capital,
    listed,
    noise_of,
    span,
    where,
)
from cerebro.bench.sweep import Setting
from cerebro.track.text import show_count


def tell_spreading(cases: Sequence[Case], machine: Machine) -> list[str]:
    """Nodes, then processes, against the fewest; that nodes are simulated is told once."""
    pairs = [(base, case) for base, *others in families(cases) for case in others]
    nodes = [pair for pair in pairs if pair[1].setting.nodes != pair[0].setting.nodes]
    procs = [pair for pair in pairs if pair[1].setting.nodes == pair[0].setting.nodes]
    if len(pairs) <= FEW:
        told = [_compare(*pair, machine) for pair in nodes]
        alone = [
            f"{_compare(*pair, machine)} {capital(_computing([pair], machine))}." for pair in procs
        ]
    else:
        told = [_tell_nodes(group, machine) for group in _grouped(nodes)]
        alone = [_tell_processes(procs, machine)] if procs else []
    if told and machine.is_simulated:
        told[0] += f" Simulated: all nodes were on one machine; {_computing(nodes, machine)}."
    return [*told, *alone]


def _compare(base: Case, case: Case, machine: Machine) -> str:
    ratio, pace = _ratio(base, case), _pace(base, case)
    than = f"{where(base.setting)}{at_batch(case.setting)}"
    more = "more nodes" if case.setting.nodes != base.setting.nodes else "more processes"
    if machine.is_busy(base, case):
        so = f"{than}, so it was {pace}" if pace else than
        text = f"took {ratio:.2f}x as long as {so}, but what {more} bring cannot be told, {BUSY}"
    elif pace == "slower":
        text = f"took {ratio:.2f}x as long as {than}, so {more} made it slower"
    elif pace == "faster":
        won = f"({1 / ratio:.2f}x as fast)"
        text = f"took {ratio:.2f}x the time of {than}, so {more} made it faster {won}"
    else:
        text = f"took about as long as {than} ({ratio:.2f}x)"
    return f"{capital(where(case.setting))} {text}: {_why(base, case)}."


def _computing(pairs: Sequence[Pair], machine: Machine) -> str:
    """With how many threads, and whether these have cores of their own."""
    cores = f"the machine's {show_count(machine.cores, 'core')}"
    crowded = sum(machine.is_crowded(case) for _, case in pairs)
    before, after = (sorted({pair[side].shown.threads for pair in pairs}) for side in (0, 1))
    threads = show_count(after[0], "thread") if len(after) == 1 else f"{span(after, 'd')} threads"
    changed = "" if before == after else f" instead of {span(before, 'd')}"
    if crowded == len(pairs) and not changed:
        return f"the processes share {cores}"
    more = f"; processes with more threads than {cores} share these" if crowded else ""
    return f"each process computes with {threads}{changed}{more}"


def _ratio(base: Case, case: Case) -> float:
    return case.training_s / base.training_s


def _why(base: Case, case: Case) -> str:
    share = f"{100 * case.communication:.0f} % of the step was communication"
    before, after = base.step_ms["compute"], case.step_ms["compute"]
    if not math.isfinite(before + after):
        return share
    work = after / before if before else math.nan
    return f"{share}; computing a step took {after:.3g} ms instead of {before:.3g} ms ({work:.2f}x)"


def _grouped(pairs: Sequence[Pair]) -> Iterator[list[Pair]]:
    """By rule, and by what they are compared with."""
    groups: dict[tuple[object, ...], list[Pair]] = {}
    for base, case in pairs:
        key = at_rule(case.setting), where(base.setting)
        groups.setdefault(key, []).append((base, case))
    yield from groups.values()


def _tell_nodes(pairs: Sequence[Pair], machine: Machine) -> str:
    if len(pairs) == 1:
        return _compare(*pairs[0], machine)
    than = where(pairs[0][0].setting)
    brought = _brought("more nodes", pairs, machine)
    text = f"{at_rule(pairs[0][1].setting)} {brought}: {_ranges(pairs)} as long as {than}"
    text += f"{_among(pairs)}."
    best, *_, worst = sorted(pairs, key=lambda pair: _ratio(*pair))
    ends = (("Slowest", worst), ("Fastest", best))
    return text + "".join(
        f" {name}, {_ratio(*pair):.2f}x: {bare_label(pair[1])}, where {_why(*pair)}."
        for name, pair in ends
    )


def _brought(what: str, pairs: Sequence[Pair], machine: Machine) -> str:
    quiet = [pair for pair in pairs if not machine.is_busy(*pair)]
    if not quiet:
        return f"what {what} bring cannot be told, {BUSY}"
    brought = f"{what} made it {_verdict(quiet, len(pairs))}"
    if len(quiet) == len(pairs):
        return brought
    others = show_count(len(pairs) - len(quiet), "other")
    return f"{brought}, and of {others} nothing can be told, {BUSY}"


def _among(pairs: Sequence[Pair]) -> str:
    found = batches([case for _, case in pairs])
    return f",{found}" if found else ""


def _pace(base: Case, case: Case) -> str:
    """Slower, faster, or "" where that may be chance."""
    ratio, noise = _ratio(base, case), noise_of(base, case)
    return "slower" if ratio > 1 + noise else "faster" if ratio < 1 - noise else ""


def _verdict(pairs: Sequence[Pair], of: int) -> str:
    """Slower, faster or neither, in how many of so many comparisons."""
    counts = {"slower": 0, "faster": 0, "neither slower nor faster": 0}
    for pair in pairs:
        counts[_pace(*pair) or "neither slower nor faster"] += 1
    first, *others = [(word, count) for word, count in counts.items() if count]
    if first[1] == of:
        return f"{first[0]} in all cases"
    told = [f"{first[0]} in {first[1]} of {of} cases"]
    return listed([*told, *(f"{word} in {count}" for word, count in others)])


def _ranges(pairs: Sequence[Pair]) -> str:
    """For each number of nodes and processes, how many times as long it took."""
    groups: dict[tuple[int, int], list[Pair]] = {}
    for base, case in pairs:
        groups.setdefault((case.setting.nodes, case.setting.procs), []).append((base, case))
    told = [
        f"{where(group[0][1].setting)} took {span([_ratio(*pair) for pair in group])} times"
        for group in groups.values()
    ]
    first, *others = told
    return listed([first, *(text.replace(" took ", " ") for text in others)])


def _tell_processes(pairs: Sequence[Pair], machine: Machine) -> str:
    """Both rules in one sentence."""
    told: list[str] = []
    for group in _grouped(pairs):
        base, case = group[0][0].setting, group[0][1].setting
        text = f"{_ranges(group)} as long as {where(base)}"
        who = f"{where(case)} took "
        if told and told[0].startswith(who):
            text = text.removeprefix(who)
        told.append(f"{text} {_lower(at_rule(case))}")
    shares = span([100 * case.communication for _, case in pairs], ".0f", " %")
    worst = max(pairs, key=lambda pair: _ratio(*pair))
    return (
        f"{capital(listed(told))}{_among(pairs)}: {_brought('more processes', pairs, machine)}. "
        f"{shares} of the step was communication, and "
        f"{_computing(pairs, machine)}. Slowest, {_ratio(*worst):.2f}x: "
        f"{bare_label(worst[1])}."
    )


def _lower(text: str) -> str:
    return text[:1].lower() + text[1:]


def tell_batches(cases: Sequence[Case], machine: Machine) -> Iterator[str]:
    """Batch sizes against the smallest, where all else is equal."""
    groups: dict[Setting, list[Case]] = {}
    for case in cases:
        s = case.setting
        if s.ranks == 1 and s.batch is not None and not s.checkpoint:
            key = Setting(nodes=s.nodes, procs=s.procs, changes=s.changes, checkpoint=s.checkpoint)
            groups.setdefault(key, []).append(case)
    for group in groups.values():
        base, *others = sorted(group, key=lambda case: case.setting.batch or 0)
        if others:
            doubt = f"; what batches bring cannot be told, {BUSY}"
            yield f"{_tell_batch(base, others)}{doubt if machine.is_busy(*group) else ''}."


def _tell_batch(base: Case, others: Sequence[Case]) -> str:
    first, *more = [(f"batch {c.setting.batch}", _ratio(base, c)) for c in others]
    times = [f"{first[0]} took {first[1]:.2f}x", *(f"{name} {ratio:.2f}x" for name, ratio in more)]
    rows = listed([f"{case.samples_per_s:,.0f}" for case in others])
    used = listed([f"{case.cpu():.0f} %" for case in others])
    than = ", ".join([f"batch {base.setting.batch}", *base.setting.changed])
    return (
        f"{capital(listed(times))} the time of {than} and trained on "
        f"{rows} rows/s instead of {base.samples_per_s:,.0f}; the processors were used to {used} "
        f"instead of {base.cpu():.0f} % of one core"
    )


def tell_shards(cases: Sequence[Case]) -> Iterator[str]:
    """A step takes no more rows than its shard has."""
    cut: dict[tuple[int, ...], set[int]] = {}
    for case in cases:
        batch, shards = case.setting.global_batch, case.shown.shards
        if batch is not None and shards and batch > max(shards):
            cut.setdefault(shards, set()).add(batch)
    for shards, found in cut.items():
        many = len(found) > 1
        sizes = span(shards, ".0f")
        yield (
            f"{'Batches' if many else 'A batch'} of {listed([str(size) for size in sorted(found)])}"
            f" in all {'are' if many else 'is'} larger than a shard "
            f"({show_count(len(shards), 'shard')} of {sizes} rows): a step takes rows of one shard "
            f"alone, so {'these' if many else 'this'} made one step of {sizes} rows a shard."
            + (" Fewer shards make larger batches possible." if len(shards) > 1 else "")
        )
