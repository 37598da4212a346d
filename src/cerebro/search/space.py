"""Space: the parameters of a search and their domains, in the order they were declared."""

from __future__ import annotations

import copy
import itertools
import json
from collections.abc import Iterator, Mapping
from typing import Protocol

from cerebro.errors import UsageError
from cerebro.search.domain import (
    Choice,
    Constant,
    Domain,
    Option,
    Subspace,
    check_parameter_name,
    parse_domain,
    parse_domains,
    same,
)
from cerebro.search.wording import show
from cerebro.types import Json, Params

__all__ = ["Source", "Space", "check_parameter_name", "parse_domain", "parse_space"]


class Source(Protocol):
    """Where the values of one trial come from. A path names a parameter: `model[0].depth` is the
    parameter `depth` of the first option of `model`.
    """

    def value(self, path: str, domain: Domain) -> Json:
        """A value of a domain that is no choice."""
        ...

    def index(self, path: str, choice: Choice) -> int:
        """The number of the option that is taken."""
        ...


class Space(Mapping[str, Domain]):
    """An immutable mapping from parameter names to domains. Make one with `parse_space`.

    The order matters: it is the order of a grid.

    >>> parse_space({"lr": [0.1, 0.01], "dropout": 0.5}).listed()
    {'lr': (0.1, 0.01), 'dropout': (0.5,)}
    """

    __slots__ = ("_domains",)

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._domains = Subspace(domains)

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def __repr__(self) -> str:
        return f"Space({dict(self._domains)!r})"

    def to_json(self) -> dict[str, Json]:
        """The space as JSON; `parse_space` gives it back."""
        return self._domains.to_json()

    def has(self, params: Params) -> bool:
        """Whether these are params of this space: its names, each with a value of its domain.

        >>> parse_space({"lr": [0.1, 0.01]}).has({"lr": 0.2})
        False
        """
        return self._domains.has(dict(params))

    def walk(self) -> Iterator[tuple[str, Domain]]:
        """Every domain with its path, those inside subspaces after the choice they belong to.

        >>> space = parse_space({"model": [{"kind": "cnn", "depth": {"randint": [1, 3]}}, "mlp"]})
        >>> [path for path, _ in space.walk()]
        ['model', 'model[0].kind', 'model[0].depth']
        """
        return _walk(self._domains, "")

    def fill(self, source: Source) -> dict[str, Json]:
        """Params with a value for every parameter, in order; of subspaces only those taken."""
        return _fill(self._domains, source, "")

    def num_combinations(self) -> int:
        """How many trials a grid has; UsageError where it cannot be made."""
        for name, domain in self.items():
            _check_listed(name, domain)
        return self._domains.num_listed() or 0

    def combination(self, number: int) -> dict[str, Json]:
        """One of them, made without the others; the last parameter varies fastest."""
        return self._domains.nth(number)

    def listed(self) -> dict[str, tuple[Json, ...]]:
        """All values of each parameter; UsageError where a domain does not list them."""
        self.num_combinations()
        return {name: domain.listed() or () for name, domain in self.items()}


def parse_space(space: Mapping[str, object]) -> Space:
    """Check a user's space: a list means choice, anything but a domain is a constant.

    A domain may also be written as in YAML and JSON: `{"loguniform": [1e-6, 1e-2]}`.

    >>> parse_space({"lr": [0.1, 0.01], "wd": {"uniform": [0, 1]}})["wd"]
    Uniform(low=0, high=1)
    """
    if isinstance(space, Space):
        return space
    if not isinstance(space, Mapping):
        raise UsageError(
            f"a search space must be a dict from names to domains, but got {show(space)}."
        )
    return Space(parse_domains(space))


def _walk(domains: Mapping[str, Domain], prefix: str) -> Iterator[tuple[str, Domain]]:
    for name, domain in domains.items():
        path = prefix + name
        yield path, domain
        for index, option in enumerate(domain.values if isinstance(domain, Choice) else ()):
            if isinstance(option, Subspace):
                yield from _walk(option, f"{path}[{index}].")


def _fill(domains: Mapping[str, Domain], source: Source, prefix: str) -> dict[str, Json]:
    params: dict[str, Json] = {}
    for name, domain in domains.items():
        path = prefix + name
        if not isinstance(domain, Choice):
            params[name] = source.value(path, domain)
            continue
        index = source.index(path, domain)
        option = domain.values[index]
        if isinstance(option, Subspace):
            params[name] = _fill(option, source, f"{path}[{index}].")
        else:
            # A task that changes a list in its params must not change the space.
            params[name] = copy.deepcopy(option)
    return params


def _check_listed(path: str, domain: Domain) -> None:
    if not isinstance(domain, Choice):
        if domain.num_listed() is None:
            raise UsageError(
                f"grid search needs listed values, but {path!r} is {domain.name}. List them, as in "
                f"choice([...]), or use search='random' with num_trials."
            )
        return
    subspaces = [option for option in domain.values if isinstance(option, Subspace)]
    for index, option in enumerate(domain.values):
        for name, inner in option.items() if isinstance(option, Subspace) else ():
            _check_listed(f"{path}[{index}].{name}", inner)
    seen: set[str] = set()
    for option in domain.values:
        if isinstance(option, Subspace):
            continue
        key = json.dumps(option)
        if key in seen:
            raise UsageError(_twice(path, option))
        seen.add(key)
    for one, other in itertools.combinations(subspaces, 2):
        if _meet(one, other):
            raise UsageError(_twice(path, one.to_json()))


def _twice(path: str, value: Json) -> str:
    return (
        f"grid search would train the same trial twice: {path!r} lists {show(value)} "
        f"more than once. Remove one of them."
    )


def _meet(one: Option, other: Option) -> bool:
    """Whether two options have a value in common."""
    if isinstance(one, Subspace) and isinstance(other, Subspace):
        return one.keys() == other.keys() and all(
            any(_meet(a, b) for a in _options(one[name]) for b in _options(other[name]))
            for name in one
        )
    if isinstance(one, Subspace):
        return not isinstance(other, Subspace) and one.has(other)
    return other.has(one) if isinstance(other, Subspace) else same(one, other)


def _options(domain: Domain) -> tuple[Option, ...]:
    if isinstance(domain, Constant):
        return (domain.value,)
    return domain.values if isinstance(domain, Choice) else ()
