"""What sentences about a benchmark have in common: names, ranges, and what counts as chance."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.bench.cases import Case
from cerebro.bench.sweep import Rule, Setting
from cerebro.track.text import show_count

#: Differences below this are not told from chance: of medians, of single runs.
_NOISE = 0.03
_NOISE_OF_ONE = 0.1
#: Up to so many comparisons have a sentence each; more are told together.
FEW = 4

#: A base, and what is compared with it.
Pair = tuple[Case, Case]


def noise_of(*cases: Case) -> float:
    """How large a difference of times must be to mean something."""
    if any(len(case.runs) == 1 for case in cases):
        return _NOISE_OF_ONE
    return max(_NOISE, *(case.spread / 2 for case in cases))


def at_batch(setting: Setting) -> str:
    """At which batch a setting is compared with others."""
    if setting.batch is None:
        return ""
    if setting.rule is Rule.GLOBAL:
        return f" at the same global batch ({setting.batch})"
    return f" with a batch of {setting.batch} for each process"


def at_rule(setting: Setting) -> str:
    """The same of several batches."""
    if setting.batch is None:
        return "With what the file says"
    return "At the same " + ("global batch" if setting.rule is Rule.GLOBAL else "batch each")


def where(setting: Setting) -> str:
    """Nodes and processes, in words.

    >>> where(Setting(nodes=2, procs=2)), where(Setting())
    ('2 nodes with 2 processes each', '1 node')
    """
    nodes = show_count(setting.nodes, "node")
    if setting.procs == 1:
        return nodes
    each = "" if setting.nodes == 1 else " each"
    return f"{nodes} with {setting.procs} processes{each}"


def batches(cases: Sequence[Case]) -> str:
    """The batches of cases: " with batches of 32 to 256"."""
    found = sorted({case.setting.batch for case in cases if case.setting.batch is not None})
    if not found:
        return ""
    if len(found) == 1:
        return f" with batches of {found[0]}"
    return f" with batches of {found[0]} to {found[-1]}"


def bare_label(case: Case) -> str:
    """What people call it, without whether it saves."""
    return case.setting.label.removesuffix(", not saved").removesuffix(", saved")


def span(values: Sequence[float], form: str = ".1f", unit: str = "") -> str:
    """The least and the most, or the one.

    >>> span([2.04, 3.8]), span([41, 41.2], ".0f", " %")
    ('2.0 to 3.8', '41 %')
    """
    low, high = format(min(values), form), format(max(values), form)
    return f"{low}{unit}" if low == high else f"{low} to {high}{unit}"


def listed(parts: Sequence[str]) -> str:
    """Parts with commas and an "and".

    >>> listed(["a", "b", "c"]), listed(["a"])
    ('a, b and c', 'a')
    """
    return " and ".join(filter(None, [", ".join(parts[:-1]), *parts[-1:]]))


def capital(text: str) -> str:
    """With a large first letter."""
    return text[:1].upper() + text[1:]
