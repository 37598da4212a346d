"""What was measured, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.bench.cases import Case, saved_pairs
from cerebro.bench.phrases import (
    BUSY,
    Machine,
    Pair,
    bare_label,
    batches,
    capital,
    noise_of,
    span,
)
from cerebro.bench.results import tell_results
from cerebro.bench.spreading import tell_batches, tell_shards, tell_spreading
from cerebro.track.text import show_count


def sentences(cases: Sequence[Case], *, cores: int, is_simulated: bool) -> list[str]:
    """What a reader should know, most important first.

    Args:
        cores: Of the machine that ran all nodes, where those are simulated.
    """
    machine = Machine(cores=cores, is_simulated=is_simulated)
    done = [case for case in cases if case.is_done]
    return [
        *_failures(cases),
        *_doubts(done, machine),
        *tell_spreading(done, machine),
        *tell_batches(done, machine),
        *tell_shards(done),
        *_saving(done, machine),
        *_usage(done),
        *tell_results(done),
    ]


def _failures(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases:
        if case.failures and not case.is_done:
            yield f"{capital(case.setting.label)} failed: {case.failures[0].error}"
        elif case.failures:
            count = show_count(len(case.failures), "repeat")
            yield f"{count} of {case.setting.label} failed: {case.failures[0].error}"


def _doubts(cases: Sequence[Case], machine: Machine) -> Iterator[str]:
    """Why the figures may mislead."""
    if machine.is_simulated and machine.is_busy(*cases):
        foreign = max(filter(math.isfinite, (case.foreign() for case in cases)))
        yield (
            f"Other programs took up to {foreign:.0f} % of one core meanwhile (of "
            f"{100 * machine.cores} %): repeat this on a quiet machine before you rely on it."
        )
    for case in cases:
        lost = case.setting.nodes - len(case.shown.nodes)
        if lost > 0:
            yield (
                f"{capital(case.setting.label)}: the samples of {show_count(lost, 'node')} are "
                "missing, so are their curves, and sums over all nodes lack them."
            )
    if cases and all(len(case.runs) == 1 for case in cases):
        yield "Each setting ran once; --repeats 3 tells differences from chance."


def _saving(cases: Sequence[Case], machine: Machine) -> Iterator[str]:
    """What saving states costs, as far as that can be told."""
    pairs = saved_pairs(cases)
    if not pairs:
        return
    changes = [_change(pair) for pair in pairs]
    # Saving makes nothing faster: where it seems to, so much is chance.
    chance = max(0.0, *(-change for change in changes)) if _ran_once(pairs) else 0.0
    costly = [pair for pair in pairs if _change(pair) > max(chance, noise_of(*pair))]
    if len(pairs) == 1:
        what, shown = f"Saving the state ({bare_label(pairs[0][0])})", f"{100 * changes[0]:+.1f} %"
    else:
        what = f"Saving the state ({len(pairs)} pairs{batches([pair[0] for pair in pairs])})"
        shown = span([100 * change for change in changes], "+.1f", " %")
    if any(machine.is_busy(*pair) for pair in pairs):
        yield f"{what} changed the time by {shown}; what it costs cannot be told, {BUSY}."
    elif not costly:
        yield f"{what} cost nothing that can be told from chance ({shown})."
    elif len(pairs) == 1:
        yield f"{what} made it {100 * changes[0]:.1f} % longer."
    else:
        longer = span([100 * _change(pair) for pair in costly], ".1f", " %")
        worst = bare_label(max(costly, key=_change)[0])
        yield (
            f"{what} made it {longer} longer in {len(costly)} of {len(pairs)} pairs, most with "
            f"{worst}; all differences: {shown}."
        )


def _change(pair: Pair) -> float:
    return pair[1].training_s / pair[0].training_s - 1


def _ran_once(pairs: Sequence[Pair]) -> bool:
    return any(len(case.runs) == 1 for pair in pairs for case in pair)


def _usage(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases[:1]:
        if math.isnan(case.cpu()):
            continue
        parts = case.shown.parts
        share = 100 * parts["validation"] / max(sum(parts.values()), 1e-9)
        yield (
            f"{capital(case.setting.label)}: its processes used {case.cpu():.0f} % of one core on "
            f"average and at most {case.memory() / 1e6:.0f} MB; validation, during which the use "
            f"of processors and memory changes, was {share:.0f} % of the time."
        )
