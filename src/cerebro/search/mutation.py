"""Small changes of a trial's params, as a population makes them; never out of their domains."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro.errors import UsageError
from cerebro.search.domain import Choice, Domain, LogUniform, QUniform, RandInt, Uniform
from cerebro.search.ranges import is_number
from cerebro.search.seeding import stream
from cerebro.search.space import Space
from cerebro.search.wording import show, unknown
from cerebro.types import Json, Params

_RANGES = (LogUniform, QUniform, RandInt, Uniform)


class Mutation:
    """Changes each of the named params: multiplies it by a factor, or draws it anew.

    A number is multiplied by one of the factors and stays inside its range; of a choice, the value
    before or after is taken.

    Args:
        space: Where the params come from.
        names: Those to change; None: all whose domain is a range of numbers.
        factors: What to multiply by, each as likely.
        resample: How likely a param is drawn anew instead.

    >>> from cerebro.search.space import parse_space
    >>> mutation = Mutation(parse_space({"lr": Uniform(0, 1)}), None, (0.5, 2.0), 0.0)
    >>> mutation.apply({"lr": 0.75}, seed=0, trial=3, epochs=1)["lr"] in (0.375, 1.0)
    True
    """

    def __init__(
        self, space: Space, names: Sequence[str] | None, factors: Sequence[float], resample: float
    ) -> None:
        if names is None:
            names = [name for name, domain in space.items() if isinstance(domain, _RANGES)]
        if not names:
            raise UsageError(
                "a population needs params to change, but no domain of the space is a range of "
                "numbers. Name some in `mutate`."
            )
        for name in names:
            _check_mutable(name, space)
        self.names = tuple(names)
        self._space = space
        self._factors = tuple(factors)
        self._resample = resample

    def apply(self, params: Params, *, seed: int, trial: int, epochs: int) -> dict[str, Json]:
        """The params changed, for a trial with so many epochs behind it."""
        changed = dict(params)
        for name in self.names:
            rng = stream(seed, trial, f"{epochs} {name}")
            domain = self._space[name]
            if rng.random() < self._resample or not domain.has(changed.get(name)):
                changed[name] = domain.sample(rng)
            else:
                changed[name] = _neighbour(domain, changed[name], rng.choice(self._factors))
        return changed


def _check_mutable(name: str, space: Space) -> None:
    domain = space.get(name)
    if domain is None:
        raise UsageError(unknown("param in `mutate`", str(name), space))
    is_plain_choice = isinstance(domain, Choice) and not domain.is_nested
    if not (is_plain_choice or isinstance(domain, _RANGES)):
        raise UsageError(
            f"a param in `mutate` must be a range of numbers or a choice of values, but "
            f"{show(name)} is {domain.name}."
        )


def _neighbour(domain: Domain, value: Json, factor: float) -> Json:
    """The value a factor further; where that rounds to itself, the next one in that direction."""
    if isinstance(domain, Choice):
        index = (domain.index_of(value) or 0) + (1 if factor > 1 else -1)
        return domain.nth(min(max(index, 0), len(domain.values) - 1))
    if isinstance(domain, QUniform):
        first, last = domain.multiples()
        return domain.multiple(_stepped(domain.multiple_of(value) or 0, factor, first, last))
    if isinstance(domain, RandInt) and isinstance(value, int):
        return _stepped(value, factor, int(domain.low), int(domain.high))
    if isinstance(domain, Uniform | LogUniform) and is_number(value):
        return domain.inside(value * factor)
    return value


def _stepped(value: int, factor: float, first: int, last: int) -> int:
    step = round(value * factor) - value
    if step == 0:
        step = 1 if (factor > 1) == (value >= 0) else -1
    return min(max(value + step, first), last)
