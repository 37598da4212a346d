"""Estimators made before the first trial: of which kind they are, and which names are misspelt."""

from __future__ import annotations

import random
import re
import types
from collections.abc import Iterator, Mapping

from cerebro.errors import UsageError
from cerebro.estimators.estimator import Estimator
from cerebro.estimators.generation import Generation
from cerebro.estimators.kinds import check
from cerebro.search.domain import Choice, Domain, Option
from cerebro.search.space import Space
from cerebro.search.wording import show
from cerebro.types import Json

#: Params that are tried until an estimator can be made of them.
_ATTEMPTS = 8
#: Options that are tried after that; any further ones are a matter of their trials.
_MOST_OPTIONS = 64
#: What Keras says of an activation, an initializer, a layer that it does not know.
_NOT_KNOWN = re.compile(r"Could not (interpret|locate) ")
_INSIDE = re.compile(r"\[(\d+)\]\.")


def try_out(space: Space, generation: Generation) -> Estimator:
    """An estimator, to see of what kind they are: bad params are a matter of their trial.

    A name that nobody knows is not: each option of the space that has one is tried once, with all
    other parameters as they are in the estimator that is returned.
    """
    found, taken = _first(space, generation)
    for path, option, indices in _named(space, taken):
        try:
            check(generation(space.fill(_Draw({**taken, **indices}))))
        except UsageError:
            raise
        except Exception as error:
            if _is_misspelt(error, option):
                raise UsageError(
                    f"every option of the search space must be one that estimator_gen_fn can use, "
                    f"but with {show(option)} for {path!r} it raised {type(error).__name__}: "
                    f"{error}. Correct the name, or take it out of search_space."
                ) from error
    return found


def _first(space: Space, generation: Generation) -> tuple[Estimator, dict[str, int]]:
    """The first estimator that can be made, and the options that it is made of."""
    drawn = random.Random(0)  # noqa: S311
    error: Exception | None = None
    for _ in range(_ATTEMPTS):
        draw = _Draw({}, drawn)
        params = space.fill(draw)
        try:
            found = generation(params)
            check(found)
        except UsageError:
            raise
        except Exception as raised:
            error = raised
        else:
            return found, draw.taken
    raise UsageError(
        f"estimator_gen_fn must return an estimator, but raised for each of {_ATTEMPTS} sets "
        f"of params, the last time {type(error).__name__}: {error}"
    ) from error


class _Draw:
    """Values for one trial, whatever the search would propose.

    Args:
        taken: The options to take, by path; filled up with those that are drawn.
        drawn: Where others come from; without it they are the first ones.
    """

    def __init__(self, taken: dict[str, int], drawn: random.Random | None = None) -> None:
        self.taken = taken
        self._drawn = drawn

    def value(self, path: str, domain: Domain) -> Json:
        return domain.sample_value()

    def index(self, path: str, choice: Choice) -> int:
        if path not in self.taken:
            most = len(choice.values)
            self.taken[path] = 0 if self._drawn is None else self._drawn.randrange(most)
        return self.taken[path]


def _named(
    space: Space, taken: Mapping[str, int]
) -> Iterator[tuple[str, Option, Mapping[str, int]]]:
    """Options with a name in them that were not taken, and what must be taken to get there."""
    left = _MOST_OPTIONS
    for path, domain in space.walk():
        inside = {path[: found.start()]: int(found[1]) for found in _INSIDE.finditer(path)}
        for index, option in enumerate(domain.values if isinstance(domain, Choice) else ()):
            indices = {**inside, path: index}
            if not _has_name(option) or indices.items() <= taken.items():
                continue
            if left == 0:
                return
            left -= 1
            yield path, option, indices


def _has_name(option: Option) -> bool:
    if isinstance(option, list):
        return any(map(_has_name, option))
    return isinstance(option, str | dict)


def _is_misspelt(error: Exception, option: Option) -> bool:
    if isinstance(error, AttributeError) and isinstance(error.obj, types.ModuleType):
        return error.name == option
    return _NOT_KNOWN.match(str(error)) is not None
