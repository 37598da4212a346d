"""What sentences about a benchmark have in common: names, ranges, and what counts as chance."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cerebro.bench.cases import Case
from cerebro.bench.sweep import Rule, Setting
from cerebro.track.text import show_count

#: Differences below this are not told from chance: of medians, of single runs.
_NOISE = 0.03
_NOISE_OF_ONE = 0.1
#: Up to so many comparisons have a sentence each; more are told together.
FEW = 4

#: What others may take of all cores before it matters.
_QUIET = 0.1
#: Why a time says nothing.
BUSY = "for other programs were busy meanwhile"

#: A base, and what is compared with it.
Pair = tuple[Case, Case]


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """Where settings ran."""

    cores: int
    #: Whether it ran all nodes.
    is_simulated: bool

    def is_busy(self, *cases: Case) -> bool:
        """Whether others took so much that times may be due to them."""
        return any(case.foreign() > 100 * self.cores * _QUIET for case in cases)

    def is_crowded(self, case: Case) -> bool:
        """Whether processes have more threads than there are cores, as far as that is known."""
        threads = case.setting.ranks * case.shown.threads
        return self.is_simulated and threads > self.cores


def noise_of(*cases: Case) -> float:
    """How large a difference of times must be to mean something."""
    if any(len(case.runs) == 1 for case in cases):
        return _NOISE_OF_ONE
    return max(_NOISE, *(case.spread / 2 for case in cases))


def at_batch(setting: Setting) -> str:
    """At which batch, and with what else, a setting is compared with others.

    >>> at_batch(Setting(batch=64, changes=(("optimizer.lr", "0.1"),)))
    ' at the same global batch (64), optimizer.lr=0.1'
    """
    changed = ", ".join(setting.changed)
    if setting.batch is None:
        return f" with {changed}" if changed else ""
    each = f" with a batch of {setting.batch} for each process"
    shared = f" at the same global batch ({setting.batch})"
    at = shared if setting.rule is Rule.GLOBAL else each
    return f"{at}, {changed}" if changed else at


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
    """Batches and other keys of cases: " with batches of 32 to 256 and optimizer.lr of 1 and 2"."""
    sizes = [case.setting.batch for case in cases if case.setting.batch is not None]
    found = [f"batches of {span(sizes, '.0f')}"] if sizes else []
    changes: dict[str, dict[str, None]] = {}
    for case in cases:
        for key, value in case.setting.changes:
            changes.setdefault(key, {})[value] = None
    found += [f"{key} of {listed(list(values))}" for key, values in changes.items()]
    return f" with {listed(found)}" if found else ""


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
