"""Domains: the values one parameter may take, and how a person writes them."""

from __future__ import annotations

import copy
import json
import math
import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self, TypeAlias

from cerebro.errors import UsageError
from cerebro.search.ranges import (
    Domain,
    LogUniform,
    Number,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    check_number,
    integer_at,
    plain,
)
from cerebro.search.wording import show, unknown
from cerebro.types import Json

__all__ = [
    "DOMAINS",
    "Choice",
    "Constant",
    "Domain",
    "Grid",
    "LogUniform",
    "Number",
    "Option",
    "QLogUniform",
    "QUniform",
    "RandInt",
    "Subspace",
    "Uniform",
    "check_number",
    "check_parameter_name",
    "parse_domain",
    "parse_domains",
    "plain",
    "same",
]

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


class Subspace(dict[str, Domain]):
    """Parameters that a trial has only where the option that they belong to is taken.

    >>> Subspace(kind=Constant("cnn"), depth=RandInt(1, 3)).has({"kind": "cnn", "depth": 2})
    True
    """

    def has(self, value: Json) -> bool:
        """Whether these are params of it: every name, each with a value of its domain."""
        return (
            isinstance(value, dict)
            and value.keys() == self.keys()
            and all(domain.has(value[name]) for name, domain in self.items())
        )

    def num_listed(self) -> int | None:
        """How many combinations of listed values there are; None where a domain lists none."""
        counts = [domain.num_listed() for domain in self.values()]
        return None if None in counts else math.prod(count for count in counts if count is not None)

    def nth(self, index: int) -> dict[str, Json]:
        """One of the combinations, the last parameter varying fastest."""
        # Counting with one digit per parameter: any of them without making the others.
        values: dict[str, Json] = {}
        for name, domain in reversed(self.items()):
            index, digit = divmod(index, domain.num_listed() or 1)
            values[name] = domain.nth(digit)
        return {name: values[name] for name in self}

    def to_json(self) -> dict[str, Json]:
        return {name: domain.to_json() for name, domain in self.items()}


Option: TypeAlias = "Json | Subspace"


@dataclass(frozen=True, slots=True)
class Choice(Domain):
    """One of the listed values, each as likely as the others; types are kept.

    Where a dict among them contains a domain (an object, or written `{"randint": [1, 3]}`), all
    dicts among them are subspaces: the trial's value is that dict, with a value for every domain
    in it. Inside a subspace a list is a choice and a plain value a constant, as everywhere.

    >>> Choice([32, "auto", None, [64, 64]]).listed()
    (32, 'auto', None, [64, 64])
    >>> Choice([{"kind": "mlp", "width": Choice([32, 64])}, {"kind": "linear"}]).listed()
    ({'kind': 'mlp', 'width': 32}, {'kind': 'mlp', 'width': 64}, {'kind': 'linear'})
    """

    name: ClassVar[str] = "choice"
    values: tuple[Option, ...]

    def __init__(self, values: Sequence[object]) -> None:
        if not isinstance(values, list | tuple):
            raise UsageError(f"{self.name} needs a list of values, but got {show(values)}.")
        if not values:
            raise UsageError(f"{self.name} needs at least one value, but got an empty list.")
        object.__setattr__(self, "values", _parse_options(values))

    @property
    def is_nested(self) -> bool:
        """Whether some of the options are subspaces."""
        return any(isinstance(option, Subspace) for option in self.values)

    def sample(self, rng: random.Random) -> Json:
        option = self.values[rng.randrange(len(self.values))]
        if isinstance(option, Subspace):
            return {name: domain.sample(rng) for name, domain in option.items()}
        # A task that changes a list in its params must not change the space.
        return copy.deepcopy(option)

    def at(self, part: float) -> Json:
        """The option so far along; what a subspace leaves open is drawn, from the part as seed."""
        option = self.values[self.index_at(part)]
        if isinstance(option, Subspace):
            rng = random.Random(part)  # noqa: S311  # repeatable on purpose
            return {name: domain.sample(rng) for name, domain in option.items()}
        return copy.deepcopy(option)

    def index_at(self, part: float) -> int:
        """The number of the option so far along, for a part in [0, 1)."""
        return integer_at(0, len(self.values) - 1, part)

    def index_of(self, value: Json) -> int | None:
        """The number of the first option that this is a value of, or None."""
        for index, option in enumerate(self.values):
            if option.has(value) if isinstance(option, Subspace) else same(option, value):
                return index
        return None

    def has(self, value: Json) -> bool:
        return self.index_of(value) is not None

    def num_listed(self) -> int | None:
        counts = [_count(option) for option in self.values]
        return None if None in counts else sum(count for count in counts if count is not None)

    def nth(self, index: int) -> Json:
        for option in self.values:
            count = _count(option) or 0
            if index < count:
                return option.nth(index) if isinstance(option, Subspace) else copy.deepcopy(option)
            index -= count
        raise IndexError(f"{self.name} lists {self.num_listed()} values only")

    def listed(self) -> tuple[Json, ...] | None:
        return Domain.listed(self) if self.is_nested else copy.deepcopy(self.values)  # type: ignore[return-value]

    def arguments(self) -> Json:
        return [
            option.to_json() if isinstance(option, Subspace) else copy.deepcopy(option)
            for option in self.values
        ]

    @classmethod
    def from_arguments(cls, arguments: Json) -> Self:
        return cls(arguments)  # type: ignore[arg-type]  # the constructor checks it


@dataclass(frozen=True, slots=True, init=False)
class Grid(Choice):
    """The listed values, all of them, under grid search; elsewhere the same as Choice.

    >>> Grid([1, 2]).to_json()
    {'grid': [1, 2]}
    """

    name: ClassVar[str] = "grid"


@dataclass(frozen=True, slots=True)
class Constant(Domain):
    """One fixed value.

    >>> Constant(0.1).sample_value()
    0.1
    """

    name: ClassVar[str] = "constant"
    value: Json

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", plain(self.value))

    def sample(self, rng: random.Random) -> Json:
        return copy.deepcopy(self.value)

    def at(self, part: float) -> Json:
        return copy.deepcopy(self.value)

    def has(self, value: Json) -> bool:
        return same(self.value, value)

    def num_listed(self) -> int:
        return 1

    def nth(self, index: int) -> Json:
        return copy.deepcopy(self.value)

    def arguments(self) -> Json:
        return copy.deepcopy(self.value)

    @classmethod
    def from_arguments(cls, arguments: Json) -> Self:
        return cls(arguments)


#: Every domain by its name, sorted.
DOMAINS: Mapping[str, type[Domain]] = {
    domain.name: domain
    for domain in (
        Choice,
        Constant,
        Grid,
        LogUniform,
        QLogUniform,
        QUniform,
        RandInt,
        Uniform,
    )
}


def same(one: Json, other: Json) -> bool:
    """Whether two values are the same in JSON: 1, 1.0 and True are three.

    >>> same({"a": 1, "b": 2}, {"b": 2, "a": 1}), same(1, True)
    (True, False)
    """
    return json.dumps(one, sort_keys=True) == json.dumps(other, sort_keys=True)


def parse_domain(value: object) -> Domain:
    """Read one domain as a user writes it.

    A dict that contains a domain, and is none itself, is a group of parameters: a choice of one.

    >>> parse_domain([32, 64])
    Choice(values=(32, 64))
    >>> parse_domain(0.5)
    Constant(value=0.5)
    """
    if isinstance(value, Domain):
        return value
    if isinstance(value, list):
        return Choice(value)
    if isinstance(value, tuple | range | set | frozenset) or getattr(value, "ndim", 0) > 0:
        raise UsageError(
            f"a choice of values is written as a list, but got {show(value)} of type "
            f"{type(value).__name__}. Write list(...) around it; a list that is itself the value "
            "is written {'constant': [...]}."
        )
    if not isinstance(value, Mapping):
        return Constant(value)  # type: ignore[arg-type]  # the constructor checks it
    if not _is_written(value) and _is_subspace(value):
        return Choice([value])
    if len(value) != 1:
        raise UsageError(
            f"a domain is one of {', '.join(DOMAINS)} with its values, as in "
            f"{{uniform: [0, 1]}}, but got {show(dict(value))}."
        )
    ((name, arguments),) = value.items()
    if name not in DOMAINS:
        raise UsageError(
            f"{unknown('domain', str(name), DOMAINS)} A mapping that is itself the value is "
            f"written {{constant: ...}}."
        )
    return DOMAINS[name].from_arguments(arguments)


def parse_domains(space: Mapping[str, object]) -> Subspace:
    """Read the domains of several parameters; errors name the parameter."""
    domains = Subspace()
    for name, value in space.items():
        check_parameter_name(name)
        try:
            domains[name] = parse_domain(value)
        except UsageError as error:
            raise UsageError(f"parameter {name!r}: {error}") from error
    return domains


def check_parameter_name(name: object) -> str:
    """Give the name back if it may name a parameter; else UsageError."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"a parameter's name must start with a letter or _ and go on with letters, digits, "
        f"_ . or - (at most 100 in all), but got {show(name)}."
    )


def _parse_options(values: Sequence[object]) -> tuple[Option, ...]:
    if not any(_is_subspace(value) for value in values):
        return tuple(plain(value) for value in values)
    options: list[Option] = []
    for index, value in enumerate(values):
        try:
            options.append(parse_domains(value) if isinstance(value, Mapping) else plain(value))
        except UsageError as error:
            raise UsageError(f"option {index}: {error}") from error
    return tuple(options)


def _is_subspace(value: object) -> bool:
    return isinstance(value, Mapping) and any(_is_domain(inner) for inner in value.values())


def _is_domain(value: object) -> bool:
    if isinstance(value, list):
        return any(_is_subspace(option) for option in value)
    return isinstance(value, Domain) or _is_written(value) or _is_subspace(value)


def _is_written(value: object) -> bool:
    return isinstance(value, Mapping) and len(value) == 1 and next(iter(value)) in DOMAINS


def _count(option: Option) -> int | None:
    return option.num_listed() if isinstance(option, Subspace) else 1
