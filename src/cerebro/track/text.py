"""How values look in tables and lines."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from cerebro.types import Json, Params, trial_id


def clean(text: str, width: int = 200) -> str:
    """One line without control characters, at most ``width`` long.

    Names and messages come from users; on a terminal an escape code in them would act.

    >>> clean("a\\x1b[2Jb\\n" + "c" * 300, width=8)
    'a?[2Jb?…'
    """
    shown = "".join(c if c.isprintable() else "?" for c in text[: width + 1])
    return shown if len(shown) <= width else shown[: width - 1] + "…"


def show(value: Json) -> str:
    """A value in few characters; numbers to four digits.

    >>> show(0.00123456), show(128), show(None), show("relu")
    ('0.001235', '128', '-', 'relu')
    """
    if value is None:
        return "-"
    if isinstance(value, float):
        return f"{value:.4g}"
    return clean(str(value), 40)


def show_trials(trials: Sequence[int]) -> str:
    """One trial, or a stack of them: from the first to the last, or how many beside the first.

    >>> show_trials([7]), show_trials(range(256)), show_trials([3, 5, 4])
    ('t0007', 't0000..t0255', 't0003 +2')
    """
    first = trial_id(trials[0])
    if len(trials) == 1:
        return first
    if all(here + 1 == after for here, after in pairwise(trials)):
        return f"{first}..{trial_id(trials[-1])}"
    return f"{first} +{len(trials) - 1}"


def show_count(count: int | None, what: str) -> str:
    """A number of things; "?" where it is not known.

    >>> show_count(1, "worker"), show_count(2, "worker"), show_count(None, "trial")
    ('1 worker', '2 workers', '? trials')
    """
    return f"{'?' if count is None else count} {what}{'' if count == 1 else 's'}"


def show_workers(workers: int, ranks: int = 1) -> str:
    """Who works on a run, where each may be a gang.

    >>> show_workers(3), show_workers(1, ranks=2)
    ('3 workers', '1 gang of 2 workers')
    """
    if ranks == 1:
        return show_count(workers, "worker")
    return f"{show_count(workers, 'gang')} of {show_count(ranks, 'worker')}"


def show_params(params: Params) -> str:
    """Params on one line.

    >>> show_params({"lr": 0.01, "batch_size": 32})
    'lr=0.01 batch_size=32'
    """
    return " ".join(f"{clean(name, 40)}={show(value)}" for name, value in params.items())


def show_seconds(seconds: float) -> str:
    """A duration.

    >>> show_seconds(7.3), show_seconds(140), show_seconds(7500), show_seconds(float("nan"))
    ('7 s', '2 min 20 s', '2 h 05 min', '-')
    """
    if not math.isfinite(seconds):
        return "-"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
