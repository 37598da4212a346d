"""What came out of the training, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.bench.cases import Case, families
from cerebro.bench.measurement import Measurement
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
from cerebro.bench.sweep import Rule
from cerebro.types import Mode

#: Values of a metric that differ by less, as a part of the value, are called the same.
_ALIKE = 0.005
#: Above this an accuracy that does not move may be one that was reached at once.
_LOW = 0.5
#: Below this it may be that of one class told for all rows.
_CHANCE = 0.2
#: Such a class may be another one after each epoch; then the loss moves by less, as a part of it.
_FLAT = 0.03


def tell_results(cases: Sequence[Case]) -> Iterator[str]:
    """Results of more nodes and processes against those of the fewest."""
    pairs = [
        (base, case)
        for base, *others in families(cases)
        for case in others
        if math.isfinite(base.best) and math.isfinite(case.best)
    ]
    still = [pair for pair in pairs if all(map(_is_still, pair))]
    others = [pair for pair in pairs if not all(map(_is_still, pair))]
    early = [pair for pair in others if _is_early(*pair)]
    moved = [pair for pair in others if not _is_early(*pair)]
    if len(moved) <= FEW:
        yield from (_compare(*pair) for pair in moved)
    else:
        yield from _together(moved)
    if early:
        yield _tell_early(_cases(early))
    if still:
        yield _tell_still(_cases(still))


def _cases(pairs: Sequence[Pair]) -> list[Case]:
    """All of them, each once."""
    return list({id(case): case for pair in pairs for case in pair}.values())


def tolerance(*cases: Case) -> float:
    """How far apart results are that cannot be told apart.

    An accuracy is a share of the validation rows, and as uncertain as these are few; both are.
    """
    fixed = max(_ALIKE * max(abs(case.best) for case in cases), 1e-9)
    rows = [case.shown.valid_rows for case in cases]
    known = [count for count in rows if count]
    if not cases[0].shown.is_accuracy or len(known) < len(rows):
        return fixed
    spread = max(max(0.0, case.best * (1 - case.best)) for case in cases)
    return max(fixed, 2 * math.sqrt(2 * spread / min(known)))


def _is_still(case: Case) -> bool:
    """Whether nothing moved after the first epoch, and that was not good."""
    is_low = not case.shown.is_accuracy or case.best <= _LOW + tolerance(case)
    return is_low and (_has_stayed(case) or all(map(_has_flat_loss, case.runs)))


def _has_stayed(case: Case) -> bool:
    noise = tolerance(case)
    return all(_is_flat([point.value for point in run.curve], noise) for run in case.runs)


def _has_flat_loss(run: Measurement) -> bool:
    """Whether an accuracy that jumps says less than the loss."""
    return run.is_accuracy and _is_flat([point.loss for point in run.curve], part=_FLAT)


def _is_flat(values: Sequence[float], noise: float = 0.0, *, part: float = 0.0) -> bool:
    found = [value for value in values if math.isfinite(value)]
    if len(found) < 2:
        return False
    return max(abs(value - found[0]) for value in found) <= noise + part * abs(found[0])


def _is_early(base: Case, case: Case) -> bool:
    """Whether one has learned nothing yet, or may have, and the other is hardly better."""
    pair = base, case
    is_open = any(_is_still(one) or len(one.shown.curve) < 2 for one in pair)
    return is_open and all(map(_is_chance, pair))


def _is_chance(case: Case) -> bool:
    return case.shown.is_accuracy and case.best < _CHANCE


def _tell_early(cases: Sequence[Case]) -> str:
    return (
        f"It is too early to tell what {_who(cases)} learned in so few epochs ({_epochs(cases)}): "
        f"{cases[0].shown.metric} is still as low as {_bests(cases)}."
    )


def _tell_still(cases: Sequence[Case]) -> str:
    # A loss may have been low at once.
    after = "" if all(map(_is_chance, cases)) else " after the first epoch"
    metric = cases[0].shown.metric
    if all(map(_has_stayed, cases)):
        much, what = "Nothing", f"{metric} stayed at {_bests(cases)} from the first on"
    else:
        much, what = "Hardly anything", f"{metric} is {_bests(cases)}, but the loss hardly moved"
    return (
        f"{much} was learned{after} by {_who(cases)} in so few epochs ({_epochs(cases)}): {what}, "
        "which says nothing about convergence."
    )


def _who(cases: Sequence[Case]) -> str:
    return bare_label(cases[0]) if len(cases) == 1 else f"{len(cases)} settings{batches(cases)}"


def _epochs(cases: Sequence[Case]) -> str:
    return span([len(case.shown.curve) for case in cases], ".0f")


def _bests(cases: Sequence[Case]) -> str:
    return span([case.best for case in cases], ".3g")


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
    if made is None or before is None or not _found(base, case):
        return ""
    if made < before and _is_worse(base, case):
        return f", for it made {made} steps instead of {before} over the same rows"
    if made == before and _is_same_training(case):
        return (
            ", after the same steps on the same rows, with sums in another order, which training "
            "magnifies"
        )
    return ""


def _is_same_training(case: Case) -> bool:
    """Whether it is that of one process but for the order of sums."""
    s = case.setting
    return s.batch is not None and s.rule is Rule.GLOBAL and not case.shown.is_rate_scaled


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
