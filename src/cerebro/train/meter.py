"""Metrics of training batches, as they come."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from cerebro.train.visit import Diverged, Sums


class Meter:
    """Adds up means of batches where they are: on a device nothing waits for them.

    >>> meter = Meter()
    >>> meter.add({"accuracy": 0.5}, 4)
    >>> meter.add({"accuracy": 1.0}, 2)
    >>> meter.totals()
    {'accuracy': 4.0}
    """

    def __init__(self) -> None:
        self._totals: dict[str, Any] = {}

    def add(self, means: Mapping[str, Any], rows: int) -> None:
        """Means over so many rows."""
        for name, value in means.items():
            if hasattr(value, "detach"):
                # What it was computed from must not stay.
                value = value.detach()
            self._totals[name] = self._totals.get(name, 0.0) + value * rows

    def where_they_are(self) -> dict[str, Any]:
        """Sums over rows, by name, as they were added: tensors of a device stay there."""
        return dict(self._totals)

    def totals(self) -> dict[str, float]:
        """Sums over rows, by name."""
        return {name: float(total) for name, total in self._totals.items()}


def training_sums(totals: Mapping[str, float], rows: int) -> Sums:
    """What a visit reports of them; `Diverged` where one is not finite."""
    for name, total in totals.items():
        if not math.isfinite(total):
            raise Diverged(f"train_{name} is {total / rows}")
    return {name: (total, rows) for name, total in totals.items()}
