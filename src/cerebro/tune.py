"""Search spaces, as people write them: `{"lr": tune.loguniform(1e-4, 1e-1), "width": [32, 64]}`.

And search classes for estimators: `GridSearch`, `RandomSearch`, `TPESearch` (also `HyperOpt`).

A plain list means `choice` and any other plain value is a constant. `choice`, `uniform` and their
kin take the values themselves. The `hp_` family is that of the original Cerebro: its log-scale
members take exponents of ten. Every domain has `sample_value()`.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cerebro.errors import UsageError
from cerebro.search.domain import (
    Choice,
    Grid,
    LogUniform,
    Number,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    check_number,
)

if TYPE_CHECKING:
    from cerebro.estimators.result import ModelSelectionResult
    from cerebro.estimators.search import ModelSelection
    from cerebro.estimators.searches import GridSearch, HyperOpt, RandomSearch, TPESearch

__all__ = [
    "GridSearch",
    "HyperOpt",
    "ModelSelection",
    "ModelSelectionResult",
    "RandomSearch",
    "TPESearch",
    "choice",
    "grid",
    "hp_choice",
    "hp_loguniform",
    "hp_qloguniform",
    "hp_quniform",
    "hp_uniform",
    "loguniform",
    "qloguniform",
    "quniform",
    "randint",
    "uniform",
]

#: Loaded at first use: spaces alone need nothing of what they load.
_LAZY = {
    "GridSearch": "cerebro.estimators.searches",
    "HyperOpt": "cerebro.estimators.searches",
    "ModelSelection": "cerebro.estimators.search",
    "ModelSelectionResult": "cerebro.estimators.result",
    "RandomSearch": "cerebro.estimators.searches",
    "TPESearch": "cerebro.estimators.searches",
}


def __getattr__(name: str) -> object:
    if name not in _LAZY:
        raise AttributeError(f"module 'cerebro.tune' has no attribute {name!r}")
    return getattr(importlib.import_module(_LAZY[name]), name)


def __dir__() -> list[str]:
    return __all__


def choice(values: Sequence[object]) -> Choice:
    """One of the listed values; anything JSON can hold, types kept.

    Dicts with domains inside are subspaces: a trial has the parameters of the one it takes.

    >>> choice([[64], [64, 64]]).sample_value() in ([64], [64, 64])
    True
    >>> choice([{"kind": "mlp", "width": choice([32, 64])}, {"kind": "linear"}]).listed()
    ({'kind': 'mlp', 'width': 32}, {'kind': 'mlp', 'width': 64}, {'kind': 'linear'})
    """
    return Choice(values)


def grid(values: Sequence[object]) -> Grid:
    """The listed values, each of them, in a grid search; random search draws from them.

    >>> grid([0.1, 0.01]).listed()
    (0.1, 0.01)
    """
    return Grid(values)


def uniform(low: Number, high: Number) -> Uniform:
    """A float from [low, high].

    >>> 0.0 <= uniform(0.0, 0.5).sample_value() <= 0.5
    True
    """
    return Uniform(low, high)


def loguniform(low: Number, high: Number) -> LogUniform:
    """A float from [low, high] whose logarithm is uniform.

    >>> 1e-4 <= loguniform(1e-4, 1e-1).sample_value() <= 1e-1
    True
    """
    return LogUniform(low, high)


def quniform(low: Number, high: Number, q: Number) -> QUniform:
    """A multiple of q inside [low, high]; an int where q is one.

    >>> quniform(16, 256, 96).sample_value() in (96, 192)
    True
    """
    return QUniform(low, high, q)


def qloguniform(low: Number, high: Number, q: Number) -> QLogUniform:
    """A multiple of q inside [low, high] on a log scale; an int where q is one.

    >>> qloguniform(16, 1024, 16).sample_value() % 16
    0
    """
    return QLogUniform(low, high, q)


def randint(low: int, high: int) -> RandInt:
    """An integer from low to high, both included.

    >>> randint(1, 3).sample_value() in (1, 2, 3)
    True
    """
    return RandInt(low, high)


def hp_choice(options: Sequence[object]) -> Choice:
    """One of the listed values.

    >>> hp_choice(["relu", "tanh"]).sample_value() in ("relu", "tanh")
    True
    """
    return Choice(options)


def hp_uniform(min: Number, max: Number) -> Uniform:
    """A float from [min, max].

    >>> 0 <= hp_uniform(0, 100).sample_value() <= 100
    True
    """
    return Uniform(min, max)


def hp_quniform(min: Number, max: Number, q: Number) -> QUniform:
    """A multiple of q inside [min, max]; an int where q is one.

    >>> hp_quniform(0, 100, 3).sample_value() % 3
    0
    """
    domain = QUniform(min, max, q)
    if domain.q == domain.high - domain.low:
        raise UsageError(f"`q < max - min` must hold, but got min={min}, max={max}, q={q}.")
    return domain


def hp_loguniform(min: Number, max: Number) -> LogUniform:
    """A float from [10**min, 10**max] whose logarithm is uniform.

    >>> hp_loguniform(-4, -1)
    LogUniform(low=0.0001, high=0.1)
    """
    return LogUniform(_power("min", min), _power("max", max))


def hp_qloguniform(min: Number, max: Number, q: Number) -> QLogUniform:
    """A multiple of q inside [10**min, 10**max] on a log scale; an int where q is one.

    >>> hp_qloguniform(1, 3, 16).sample_value() % 16
    0
    """
    return QLogUniform(_power("min", min), _power("max", max), q)


def _power(field: str, exponent: Number) -> Number:
    exponent = check_number(field, exponent)
    if not -300 <= exponent <= 300:
        raise UsageError(
            f"`{field}` is an exponent of ten and must lie in [-300, 300], but got "
            f"{field}={exponent!r}."
        )
    power: Number = 10**exponent
    return power
