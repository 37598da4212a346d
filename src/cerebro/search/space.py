"""Space: the parameters of a search and their domains, in the order they were declared."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping

from cerebro.errors import UsageError
from cerebro.search.domain import DOMAINS, Choice, Constant, Domain
from cerebro.search.wording import show, unknown
from cerebro.types import Json

_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,99}")


class Space(Mapping[str, Domain]):
    """An immutable mapping from parameter names to domains. Make one with `parse_space`.

    The order matters: it is the order of a grid.

    >>> parse_space({"lr": [0.1, 0.01], "dropout": 0.5}).listed()
    {'lr': (0.1, 0.01), 'dropout': (0.5,)}
    """

    __slots__ = ("_domains",)

    def __init__(self, domains: Mapping[str, Domain]) -> None:
        self._domains = dict(domains)

    def __getitem__(self, name: str) -> Domain:
        return self._domains[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._domains)

    def __len__(self) -> int:
        return len(self._domains)

    def __repr__(self) -> str:
        return f"Space({self._domains!r})"

    def to_json(self) -> dict[str, Json]:
        """The space as JSON; `parse_space` gives it back."""
        return {name: domain.to_json() for name, domain in self._domains.items()}

    def listed(self) -> dict[str, tuple[Json, ...]]:
        """All values of each parameter; UsageError where a domain does not list them."""
        return {name: _values_of(name, domain) for name, domain in self._domains.items()}


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
    domains: dict[str, Domain] = {}
    for name, value in space.items():
        check_parameter_name(name)
        try:
            domains[name] = parse_domain(value)
        except UsageError as error:
            raise UsageError(f"parameter {name!r}: {error}") from error
    return Space(domains)


def check_parameter_name(name: object) -> str:
    """Give the name back if it may name a parameter; else UsageError."""
    if isinstance(name, str) and _NAME.fullmatch(name):
        return name
    raise UsageError(
        f"a parameter's name must start with a letter or _ and go on with letters, digits, "
        f"_ . or - (at most 100 in all), but got {show(name)}."
    )


def parse_domain(value: object) -> Domain:
    """Read one domain as a user writes it.

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


def _values_of(name: str, domain: Domain) -> tuple[Json, ...]:
    values = domain.listed()
    if values is None:
        raise UsageError(
            f"grid search needs listed values, but {name!r} is {domain.name}. List them, as in "
            f"choice([...]), or use search='random' with num_trials."
        )
    seen: set[str] = set()
    for value in values:
        key = json.dumps(value)
        if key in seen:
            raise UsageError(
                f"grid search would train the same trial twice: {name!r} lists {show(value)} "
                f"more than once. Remove one of them."
            )
        seen.add(key)
    return values
