"""Budgets: what all trials of a run together may take."""

from __future__ import annotations

import re
from collections.abc import Mapping

from cerebro.errors import UsageError
from cerebro.search.wording import show, unknown

_KINDS = ("time", "trials", "epochs", "visits")
_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_DURATION = re.compile(r"(?:\d+(?:\.\d+)?[smhd]\s*)+")
_COUNT = re.compile(r"(\d+)\s+(trials|epochs|visits)")


def parse_budget(value: object) -> dict[str, float]:
    """A budget as a person writes it, as `seconds`, `trials`, `epochs` and `visits`.

    >>> parse_budget("1h30m"), parse_budget("200 epochs"), parse_budget({"trials": 50})
    ({'seconds': 5400.0}, {'epochs': 200}, {'trials': 50})
    """
    if value is None:
        return {}
    if isinstance(value, str):
        match = _COUNT.fullmatch(value.strip())
        if match:
            return {match[2]: _count(match[2], int(match[1]))}
        return {"seconds": parse_duration(value)}
    if not isinstance(value, Mapping) or not value:
        raise UsageError(
            "a budget is a time such as '30m', a count such as '200 epochs', or a mapping of "
            f"{', '.join(_KINDS)}, but got {show(value)}."
        )
    found: dict[str, float] = {}
    for kind, amount in value.items():
        if kind not in _KINDS:
            raise UsageError(unknown("budget", str(kind), _KINDS))
        if kind == "time":
            found["seconds"] = parse_duration(amount)
        else:
            found[kind] = _count(kind, amount)
    return found


def parse_duration(value: object) -> float:
    """Seconds: a number, or text with units.

    >>> parse_duration("90s"), parse_duration("1.5h"), parse_duration(30)
    (90.0, 5400.0, 30.0)
    """
    if isinstance(value, int | float) and not isinstance(value, bool) and value > 0:
        return float(value)
    if isinstance(value, str) and _DURATION.fullmatch(value.strip()):
        parts = re.findall(r"(\d+(?:\.\d+)?)([smhd])", value)
        seconds = sum(float(number) * _SECONDS[unit] for number, unit in parts)
        if seconds > 0:
            return seconds
    raise UsageError(
        f"a time must be a positive number of seconds or text such as '90s', '30m' or '1h30m', but "
        f"got {show(value)}."
    )


def written_duration(seconds: float) -> str:
    """A time as a budget is written.

    >>> written_duration(1800), written_duration(7799), written_duration(45)
    ('30m', '2h10m', '45s')
    """
    if seconds < 60:
        return f"{seconds:.2g}s"
    minutes = round(seconds / 60)
    hours, rest = divmod(minutes, 60)
    return f"{hours}h{rest:02d}m" if hours and rest else f"{hours}h" if hours else f"{rest}m"


def _count(kind: str, value: object) -> int:
    if isinstance(value, int) and not isinstance(value, bool) and value >= 1:
        return value
    raise UsageError(f"a budget of {kind} must be a count of at least 1, but got {show(value)}.")
