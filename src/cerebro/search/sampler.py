"""Samplers: what to try next. Asked for one trial at a time, told how it ended."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import random
from collections.abc import Callable, Mapping
from typing import Protocol

from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.space import Space
from cerebro.search.wording import unknown
from cerebro.types import Json, Params


class Sampler(Protocol):
    """Proposes params. What it proposes depends on its arguments and on what it was told alone."""

    #: How many proposals there will be; None where it goes on as long as it is asked.
    num_trials: int | None
    #: Whether what it is told changes what it proposes.
    is_adaptive: bool

    def ask(self, number: int) -> Params | None:
        """The params of proposal `number` (0, 1, ...), or None when there are no more."""
        ...

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """How a proposal ended. One that waits (paused) may be told of, and again at its end.

        `params` may be others than it proposed: those of an earlier run, or given by a person.
        """
        ...


class GridSampler:
    """Every combination of the listed values, the last parameter varying fastest.

    >>> from cerebro.search.space import parse_space
    >>> sampler = GridSampler(parse_space({"lr": [0.1, 0.01]}))
    >>> sampler.ask(1), sampler.ask(2)
    ({'lr': 0.01}, None)
    """

    is_adaptive = False

    def __init__(self, space: Space) -> None:
        self._values = space.listed()
        self.num_trials: int | None = math.prod(len(values) for values in self._values.values())

    def ask(self, number: int) -> Params | None:
        _check_number(number)
        if self.num_trials is None or number >= self.num_trials:
            return None
        # Counting with one digit per parameter: any trial of any grid without making the others.
        params: dict[str, Json] = {}
        for name in reversed(self._values):
            number, digit = divmod(number, len(self._values[name]))
            params[name] = copy.deepcopy(self._values[name][digit])
        return {name: params[name] for name in self._values}

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """A grid learns nothing."""


class RandomSampler:
    """Independent draws. Trial n's value of a parameter depends on (seed, n, its name) alone.

    So adding a parameter leaves the others as they were, and no two parameters move together.

    >>> from cerebro.search.space import parse_space
    >>> space = parse_space({"width": [32, 64, 128]})
    >>> sampler = RandomSampler(space, seed=0, num_trials=20)
    >>> sampler.ask(7) == RandomSampler(space, seed=0, num_trials=20).ask(7)
    True
    """

    is_adaptive = False

    def __init__(self, space: Space, *, seed: int, num_trials: int) -> None:
        if num_trials < 1:
            raise UsageError(f"`num_trials >= 1` must hold, but got num_trials={num_trials}.")
        self._space = space
        self._seed = seed
        self.num_trials: int | None = num_trials

    def ask(self, number: int) -> Params | None:
        _check_number(number)
        if self.num_trials is not None and number >= self.num_trials:
            return None
        return {
            name: domain.sample(_stream(self._seed, number, name))
            for name, domain in self._space.items()
        }

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """Random draws learn nothing."""


def make_sampler(
    name: str, space: Space, *, seed: int = 0, num_trials: int | None = None
) -> Sampler:
    """The sampler of this name; UsageError where its arguments do not fit it.

    >>> from cerebro.search.space import parse_space
    >>> make_sampler("grid", parse_space({"lr": [0.1]})).ask(0)
    {'lr': 0.1}
    """
    factory = SAMPLERS.get(str(name))
    if factory is None:
        raise UsageError(unknown("search", str(name), SAMPLERS))
    return factory(space, seed, num_trials)


def _make_grid(space: Space, seed: int, num_trials: int | None) -> Sampler:
    if num_trials is not None:
        raise UsageError(
            f"num_trials belongs to random search: a grid tries every combination, but got "
            f"num_trials={num_trials} with search='grid'. Remove it or use search='random'."
        )
    return GridSampler(space)


def _make_random(space: Space, seed: int, num_trials: int | None) -> Sampler:
    if num_trials is None:
        raise UsageError("search='random' needs num_trials: how many trials to draw.")
    return RandomSampler(space, seed=seed, num_trials=num_trials)


#: name -> (space, seed, num_trials) -> Sampler; sorted.
SAMPLERS: Mapping[str, Callable[[Space, int, int | None], Sampler]] = {
    "grid": _make_grid,
    "random": _make_random,
}


def _check_number(number: int) -> None:
    if number < 0:
        raise UsageError(f"`number >= 0` must hold, but got number={number}.")


def _stream(seed: int, number: int, name: str) -> random.Random:
    key = json.dumps([seed, number, name]).encode()
    return random.Random(hashlib.sha256(key).digest())  # noqa: S311  # repeatable on purpose
