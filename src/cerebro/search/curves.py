"""Learning curves for simulated searches: made up, or recorded."""

from __future__ import annotations

import hashlib
import json
import random
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from cerebro.types import Metrics, Params

#: (trial, params, epochs behind it) -> metrics.
Curve: TypeAlias = Callable[[int, Params, int], Metrics]


def power_law(seed: int, *, metric: str = "val_loss", noise: float = 0.01) -> Curve:
    """Losses that fall as a power of the epochs, to a floor and at a rate drawn for the params.

    >>> curve = power_law(0, noise=0.0)
    >>> curve(0, {"lr": 0.1}, 9)["val_loss"] < curve(0, {"lr": 0.1}, 1)["val_loss"]
    True
    """

    def curve(trial: int, params: Params, epochs: int) -> Metrics:
        shape = _stream(seed, params)
        floor, scale, rate = shape.random(), shape.uniform(0.5, 2.0), shape.uniform(0.3, 1.5)
        wobble = _stream(seed, params, trial, epochs).gauss(0.0, noise)
        return {metric: floor + scale * epochs**-rate + wobble}

    return curve


def recorded(table: Mapping[int, Sequence[Metrics]]) -> Curve:
    """What trials reported: for each, the metrics after 1, 2, ... epochs.

    >>> recorded({3: [{"val_loss": 0.5}, {"val_loss": 0.4}]})(3, {}, 2)
    {'val_loss': 0.4}
    """
    return lambda trial, params, epochs: table[trial][epochs - 1]


def _stream(seed: int, params: Params, *numbers: int) -> random.Random:
    key = json.dumps([seed, dict(params), *numbers], sort_keys=True).encode()
    return random.Random(hashlib.sha256(key).digest())  # noqa: S311  # repeatable on purpose
