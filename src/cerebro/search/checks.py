"""Checks of a search's arguments, as they come from code and from files."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from cerebro.errors import UsageError
from cerebro.search.wording import show

if TYPE_CHECKING:
    from cerebro.search.stopper import Stopper


def check_whole(name: str, value: object, least: int) -> int:
    """Give the number back if it is a whole one and large enough; else UsageError.

    >>> check_whole("eta", 3, 2)
    3
    """
    if isinstance(value, bool) or not isinstance(value, int):
        raise UsageError(f"`{name}` must be a whole number, but got {name}={show(value)}.")
    if value < least:
        raise UsageError(f"`{name} >= {least}` must hold, but got {name}={value}.")
    return value


def check_real(name: str, value: object, least: float = -math.inf, most: float = math.inf) -> float:
    """Give the number back if it is finite and between the bounds; else UsageError.

    >>> check_real("quantile", 0.25, 0, 0.5)
    0.25
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise UsageError(f"`{name}` must be a finite number, but got {name}={show(value)}.")
    if not least <= value <= most:
        parts = [f"{least:g} <= " if least > -math.inf else "", name]
        parts.append(f" <= {most:g}" if most < math.inf else "")
        raise UsageError(f"`{''.join(parts)}` must hold, but got {name}={value}.")
    return float(value)


def check_counts(**numbers: int | None) -> None:
    """UsageError unless each of them is at least 1, or None.

    >>> check_counts(epochs=3, concurrent=None)
    """
    for name, number in numbers.items():
        if number is not None and number < 1:
            raise UsageError(f"`{name} >= 1` must hold, but got {name}={number}.")


def check_repeats(repeats: int, stopper: Stopper) -> None:
    """UsageError where trials are repeated that are weighed against each other."""
    if repeats > 1 and stopper.is_comparing:
        raise UsageError(
            f"`repeats == 1` must hold with stopper {stopper.describe().get('name')!r}, which "
            f"weighs trials against each other, but got repeats={repeats}. Remove one of them."
        )


def check_end(*limits: int | None) -> None:
    """UsageError where nothing limits how much is proposed.

    >>> check_end(None, 3)
    """
    if all(limit is None for limit in limits):
        raise UsageError(
            "a search that proposes as long as it is asked needs num_trials, max_trials, "
            "max_epochs or concurrent."
        )
