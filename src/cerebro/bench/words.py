"""What was measured, in sentences."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from cerebro.bench.cases import Case, families, saved_pairs
from cerebro.bench.sweep import Rule, Setting
from cerebro.track.text import show_count

#: Differences below this are not told from chance: of medians, of single runs.
_NOISE = 0.03
_NOISE_OF_ONE = 0.1
#: What others may take of all cores before it matters.
_QUIET = 0.1
#: Values of a metric that differ by less are called the same.
_ALIKE = 0.005


def sentences(cases: Sequence[Case], *, cores: int, is_simulated: bool) -> list[str]:
    """What a reader should know, most important first.

    Args:
        cores: Of the machine that ran all nodes, where those are simulated.
    """
    done = [case for case in cases if case.is_done]
    return [
        *_failures(cases),
        *_doubts(done, cores=cores, is_simulated=is_simulated),
        *_spreading(done, cores, is_simulated),
        *_batches(done),
        *_saving(done),
        *_usage(done),
        *_convergence(done),
    ]


def _failures(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases:
        if case.failures and not case.is_done:
            yield f"{_capital(case.setting.label)} failed: {case.failures[0].error}"
        elif case.failures:
            count = show_count(len(case.failures), "repeat")
            yield f"{count} of {case.setting.label} failed: {case.failures[0].error}"


def _spreading(cases: Sequence[Case], cores: int, is_simulated: bool) -> Iterator[str]:
    for base, *others in families(cases):
        for case in others:
            yield _compare_nodes(base, case, cores, is_simulated)


def _compare_nodes(base: Case, case: Case, cores: int, is_simulated: bool) -> str:
    ratio, noise = case.training_s / base.training_s, _noise(base, case)
    who, than, at = _where(case.setting), _where(base.setting), _batch(case.setting)
    if ratio > 1 + noise:
        text = f"{who} took {ratio:.2f}x as long as {than}{at}"
    elif ratio < 1 - noise:
        text = f"{who} took {ratio:.2f}x the time of {than}{at} ({1 / ratio:.2f}x as fast)"
    else:
        text = f"{who} took about as long as {than}{at} ({ratio:.2f}x)"
    text = f"{_capital(text)}: {_why(base, case)}"
    if is_simulated and case.setting.nodes > 1:
        text += f" Simulated: all nodes shared the {show_count(cores, 'core')} of one machine."
    return text


def _noise(*cases: Case) -> float:
    """How large a difference must be to mean something."""
    if any(len(case.runs) == 1 for case in cases):
        return _NOISE_OF_ONE
    return max(_NOISE, *(case.spread / 2 for case in cases))


def _why(base: Case, case: Case) -> str:
    share = 100 * case.communication
    before, after = base.step_ms, case.step_ms
    if not math.isfinite(before["compute"] + after["compute"]):
        return f"{share:.0f} % of the step was communication."
    work = after["compute"] / before["compute"] if before["compute"] else math.nan
    return (
        f"{share:.0f} % of the step was communication; computing a step took "
        f"{after['compute']:.3g} ms instead of {before['compute']:.3g} ms ({work:.2f}x)."
    )


def _batches(cases: Sequence[Case]) -> Iterator[str]:
    """Batch sizes against each other, where all else is equal; the smallest against each."""
    groups: dict[Setting, list[Case]] = {}
    for case in cases:
        s = case.setting
        if s.ranks == 1 and s.batch is not None and not s.checkpoint:
            key = Setting(nodes=s.nodes, procs=s.procs, changes=s.changes, checkpoint=s.checkpoint)
            groups.setdefault(key, []).append(case)
    for group in groups.values():
        base, *others = sorted(group, key=lambda case: case.setting.batch or 0)
        for case in others:
            yield (
                f"Batch {case.setting.batch} took {case.training_s / base.training_s:.2f}x the "
                f"time of batch {base.setting.batch} and trained on {case.samples_per_s:,.0f} "
                f"rows/s instead of {base.samples_per_s:,.0f}; the processors were used to "
                f"{case.cpu():.0f} % instead of {base.cpu():.0f} % of one core."
            )


def _saving(cases: Sequence[Case]) -> Iterator[str]:
    for without, saved in saved_pairs(cases):
        change = saved.training_s / without.training_s - 1
        what = f"Saving the state ({without.setting.label.removesuffix(', not saved')})"
        if change < _noise(without, saved):
            yield f"{what} cost nothing that can be told from chance ({100 * change:+.1f} %)."
        else:
            yield f"{what} made it {100 * change:.1f} % longer."


def _doubts(cases: Sequence[Case], *, cores: int, is_simulated: bool) -> Iterator[str]:
    """Why the figures may mislead."""
    foreign = max((case.foreign() for case in cases), default=math.nan)
    if is_simulated and foreign > 100 * cores * _QUIET:
        yield (
            f"Other programs took up to {foreign:.0f} % of one core meanwhile (of "
            f"{100 * cores} %): repeat this on a quiet machine before you rely on it."
        )
    if cases and all(len(case.runs) == 1 for case in cases):
        yield "Each setting ran once; --repeats 3 tells differences from chance."


def _usage(cases: Sequence[Case]) -> Iterator[str]:
    for case in cases[:1]:
        if math.isnan(case.cpu()):
            continue
        parts = case.shown.parts
        share = 100 * parts["validation"] / max(sum(parts.values()), 1e-9)
        yield (
            f"{_capital(case.setting.label)}: its processes used {case.cpu():.0f} % of one core on "
            f"average and at most {case.memory() / 1e6:.0f} MB; validation, during which the use "
            f"of processors and memory changes, was {share:.0f} % of the time."
        )


def _convergence(cases: Sequence[Case]) -> Iterator[str]:
    for base, *others in families(cases):
        for case in others:
            if not (math.isfinite(base.best) and math.isfinite(case.best)):
                continue
            is_equal = abs(case.best - base.best) <= _ALIKE * max(abs(base.best), 1e-9)
            found = "reached the same" if is_equal else "did not reach the same"
            steps = ""
            made, before = case.shown.steps, base.shown.steps
            if made is not None and before is not None and made < before:
                steps = (
                    f", {'though' if is_equal else 'for'} it made {made} steps instead "
                    f"of {before} over the same rows"
                )
            yield (
                f"{_capital(_where(case.setting))}{_batch(case.setting)} {found} "
                f"{case.shown.metric} as {_where(base.setting)}: {case.best:.4g} against "
                f"{base.best:.4g}{steps}."
            )


def _batch(setting: Setting) -> str:
    if setting.batch is None:
        return ""
    if setting.rule is Rule.GLOBAL:
        return f" at the same global batch ({setting.batch})"
    return f" with a batch of {setting.batch} for each process"


def _where(setting: Setting) -> str:
    nodes = show_count(setting.nodes, "node")
    if setting.procs == 1:
        return nodes
    each = "" if setting.nodes == 1 else " each"
    return f"{nodes} with {setting.procs} processes{each}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
