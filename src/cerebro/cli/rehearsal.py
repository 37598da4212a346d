"""What a search in simulated time came to, for people."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

from cerebro.run.estimate import Measured
from cerebro.search.simulator import SearchSimulation
from cerebro.track.text import show_seconds

#: Rungs shown.
_SHOWN = 8


def describe_rehearsal(
    simulation: SearchSimulation, source: str, measured: Measured | None
) -> list[tuple[str, str]]:
    """What to say of it, in rows of a plan."""
    if measured is None:
        long = f"as long as {simulation.makespan_s:.0f} training visits"
    else:
        long = f"about {show_seconds(simulation.makespan_s)}"
    epochs = f"{simulation.epochs} epochs of {len(simulation.epochs_of)} trials"
    busy = f"workers are busy {100 * fmean(simulation.busy):.0f} % of it"
    rows = [
        ("search", f"about {epochs}, {long}; {busy}; simulated with {source}"),
        ("", describe_rungs(list(simulation.epochs_of.values()))),
    ]
    if simulation.halted is not None:
        rows.append(("", f"ends early: {simulation.halted}"))
    return rows


def describe_rungs(epochs: Sequence[int]) -> str:
    """How many trials come how far, given the epochs behind each at its end.

    >>> describe_rungs([1] * 6 + [3] * 2 + [9])
    'trials that come to epoch 1: 9, 3: 3, 9: 1'
    """
    levels = sorted(set(epochs) - {0})
    reached = [f"{level}: {sum(each >= level for each in epochs)}" for level in levels]
    if len(reached) > _SHOWN:
        half = _SHOWN // 2
        reached = [*reached[:half], "…", *reached[-half:]]
    return f"trials that come to epoch {', '.join(reached)}"
