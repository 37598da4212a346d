"""A space as Optuna sees it: distributions by path, and values there and back.

Floats and integers go over as they are. A quantised range goes over as the number of steps, a
choice as its values; by number where Optuna would not tell them apart or cannot hold them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import optuna
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from cerebro.search.domain import (
    Choice,
    Domain,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Subspace,
    Uniform,
)
from cerebro.types import Json

_SCALARS = (bool, int, float, str, type(None))


class Encoded(NamedTuple):
    """Params as Optuna keeps them: flat, by path."""

    values: dict[str, Json]
    distributions: dict[str, BaseDistribution]


class Suggestions:
    """A source of values: the suggestions of one of Optuna's trials."""

    def __init__(self, trial: optuna.Trial) -> None:
        self._trial = trial

    def value(self, path: str, domain: Domain) -> Json:
        distribution = distribution_of(domain)
        if distribution is None:
            return domain.at(0.0)
        return decode(domain, _suggest(self._trial, path, distribution))

    def index(self, path: str, choice: Choice) -> int:
        distribution = distribution_of(choice)
        if distribution is None:
            return 0
        labels: list[Json] = [*labels_of(choice)]
        return labels.index(_suggest(self._trial, path, distribution))


def distribution_of(domain: Domain) -> BaseDistribution | None:
    """The distribution that stands for a domain; None where there is nothing to choose.

    >>> from cerebro.search.domain import parse_domain
    >>> distribution_of(parse_domain({"quniform": [16, 64, 16]}))
    IntDistribution(high=4, log=False, low=1, step=1)
    """
    match domain:
        case Uniform() | LogUniform():
            is_log = isinstance(domain, LogUniform)
            return FloatDistribution(float(domain.low), float(domain.high), log=is_log)
        case QUniform():
            return IntDistribution(*domain.multiples(), log=isinstance(domain, QLogUniform))
        case RandInt():
            return IntDistribution(int(domain.low), int(domain.high))
        case Choice() if len(domain.values) > 1:
            return CategoricalDistribution(labels_of(domain))
    return None


def labels_of(choice: Choice) -> list[bool | int | float | str | None]:
    """What Optuna calls the options of a choice.

    >>> labels_of(Choice(["relu", "tanh"])), labels_of(Choice([[64], [64, 64]]))
    (['relu', 'tanh'], [0, 1])
    """
    scalars = [value for value in choice.values if isinstance(value, _SCALARS)]
    is_clear = len(scalars) == len(choice.values) == len(set(scalars))
    return scalars if is_clear else list(range(len(choice.values)))


def decode(domain: Domain, value: Json) -> Json:
    """The value of a range that one of Optuna's stands for: a plain one, inside the range."""
    number = float(value) if isinstance(domain, Uniform | LogUniform) else int(value)  # type: ignore[arg-type]
    match domain:
        case Uniform() | LogUniform():
            return domain.inside(number)
        case QUniform():
            first, last = domain.multiples()
            return domain.multiple(min(max(int(number), first), last))
        case RandInt():
            return int(min(max(number, domain.low), domain.high))
    return value


def encode(domains: Mapping[str, Domain], params: Mapping[str, Json], prefix: str = "") -> Encoded:
    """Params of a space as Optuna keeps them."""
    values: dict[str, Json] = {}
    distributions: dict[str, BaseDistribution] = {}
    for name, domain in domains.items():
        path, value = prefix + name, params[name]
        distribution = distribution_of(domain)
        if distribution is not None:
            values[path] = _encode_value(domain, value)
            distributions[path] = distribution
        index = domain.index_of(value) if isinstance(domain, Choice) else None
        option = domain.values[index] if isinstance(domain, Choice) and index is not None else None
        if isinstance(option, Subspace) and isinstance(value, dict):
            inner = encode(option, value, f"{path}[{index}].")
            values |= inner.values
            distributions |= inner.distributions
    return Encoded(values, distributions)


def _encode_value(domain: Domain, value: Json) -> Json:
    if isinstance(domain, Choice):
        return labels_of(domain)[domain.index_of(value) or 0]
    return domain.multiple_of(value) if isinstance(domain, QUniform) else value


def _suggest(trial: optuna.Trial, path: str, distribution: BaseDistribution) -> Json:
    match distribution:
        case FloatDistribution(low=low, high=high, log=log):
            return trial.suggest_float(path, low, high, log=log)
        case IntDistribution(low=low, high=high, log=log):
            return trial.suggest_int(path, low, high, log=log)
        case CategoricalDistribution(choices=choices):
            return trial.suggest_categorical(path, choices)
    raise TypeError(f"no suggestion for {distribution!r}")
