"""What came out of the training, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.bench.cases import Case, families
from cerebro.bench.phrases import (
    FEW,
    Pair,
    at_batch,
    at_rule,
    bare_label,
    batches,
    capital,
    listed,
    span,
    where,
)
from cerebro.types import Mode

#: Values of a metric that differ by less, as a part of the value, are called the same.
_ALIKE = 0.005
#: Above this an accuracy that does not move may be one that was reached at once.
_LOW = 0.5


def tell_results(cases: Sequence[Case]) -> Iterator[str]:
    """Results of more nodes and processes against those of the fewest."""
    pairs = [
        (base, case)
        for base, *others in families(cases)
        for case in others
        if math.isfinite(base.best) and math.isfinite(case.best)
    ]
    still = [pair for pair in pairs if all(map(_is_still, pair))]
    moved = [pair for pair in pairs if not all(map(_is_still, pair))]
    if len(moved) <= FEW:
        yield from (_compare(*pair) for pair in moved)
    else:
        yield from _together(moved)
    if still:
        yield _tell_still(list({id(case): case for pair in still for case in pair}.values()))


def tolerance(*cases: Case) -> float:
    """How far apart results are that cannot be told apart.

    An accuracy is a share of the validation rows, and as uncertain as these are few.
    """
    fixed = max(_ALIKE * max(abs(case.best) for case in cases), 1e-9)
    rows = [case.shown.valid_rows for case in cases]
    known = [count for count in rows if count]
    if not _is_accuracy(cases[0]) or len(known) < len(rows):
        return fixed
    spread = max(max(0.0, case.best * (1 - case.best)) for case in cases)
    return max(fixed, 2 * math.sqrt(spread / min(known)))


def _is_still(case: Case) -> bool:
    """Whether the metric stayed where it was after the first epoch, and that was not good."""
    noise = tolerance(case)
    for run in case.runs:
        values = [point.value for point in run.curve if math.isfinite(point.value)]
        if len(values) < 2 or max(abs(value - values[0]) for value in values) > noise:
            return False
    return not _is_accuracy(case) or case.best <= _LOW + noise


def _is_accuracy(case: Case) -> bool:
    return "acc" in case.shown.metric.lower()


def _tell_still(cases: Sequence[Case]) -> str:
    # A loss may have been low at once.
    after = "" if _is_accuracy(cases[0]) else " after the first epoch"
    epochs = span([len(case.shown.curve) for case in cases], ".0f")
    who = bare_label(cases[0]) if len(cases) == 1 else f"{len(cases)} settings{batches(cases)}"
    return (
        f"Nothing was learned{after} by {who} in so few epochs ({epochs}): "
        f"{cases[0].shown.metric} stayed at {span([case.best for case in cases], '.3g')} from the "
        "first on, which says nothing about convergence."
    )


def _found(base: Case, case: Case) -> str:
    """How a result compares: "" where it is as good."""
    gap = case.best - base.best
    return "" if abs(gap) <= tolerance(base, case) else "higher" if gap > 0 else "lower"


def _is_worse(base: Case, case: Case) -> bool:
    return _found(base, case) == ("lower" if case.shown.mode is Mode.MAX else "higher")


def _compare(base: Case, case: Case) -> str:
    metric, than = case.shown.metric, where(base.setting)
    found = _found(base, case)
    said = f"a {found} {metric} than" if found else f"a {metric} as good as that of"
    return (
        f"{capital(where(case.setting))}{at_batch(case.setting)} reached {said} {than}: "
        f"{case.best:.4g} against {base.best:.4g}{_cause(base, case)}."
    )


def _cause(base: Case, case: Case) -> str:
    made, before = case.shown.steps, base.shown.steps
    if made is None or before is None or made >= before or not _is_worse(base, case):
        return ""
    return f", for it made {made} steps instead of {before} over the same rows"


def _together(pairs: Sequence[Pair]) -> Iterator[str]:
    """A sentence for each rule: how many are as good, and the furthest of the others."""
    groups: dict[tuple[str, str], list[Pair]] = {}
    for base, case in pairs:
        key = at_rule(case.setting), where(base.setting)
        groups.setdefault(key, []).append((base, case))
    for (rule, than), group in groups.items():
        metric = group[0][1].shown.metric
        parts = []
        for word in ("", "higher", "lower"):
            found = [pair for pair in group if _found(*pair) == word]
            if found:
                parts.append(_count(word, than, found, len(group)))
        yield f"{rule} {metric} was {listed(parts)}."


def _count(word: str, than: str, pairs: Sequence[Pair], of: int) -> str:
    share = f"in {len(pairs)} of {of} cases" if len(pairs) < of else "in all cases"
    if not word:
        return f"as good as that of {than} {share}"
    base, case = max(pairs, key=lambda pair: abs(pair[1].best - pair[0].best))
    return (
        f"{word} {share} (furthest: {bare_label(case)}, {case.best:.4g} against "
        f"{base.best:.4g}{_cause(base, case)})"
    )
