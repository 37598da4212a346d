"""Warm starts: params to try first, and what an earlier run has shown already."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import TYPE_CHECKING

from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.ranges import plain
from cerebro.search.seeding import check_proposal
from cerebro.search.space import Space
from cerebro.search.wording import show, unknown
from cerebro.types import Json, Params

if TYPE_CHECKING:
    from cerebro.search.sampler import Sampler


class WarmSampler:
    """Proposes given params first, then what another sampler does, which learns from all of them.

    The given params count among the sampler's trials: they take the place of its first proposals.
    What is known from earlier is told before the first question, under negative numbers, and what
    is told under such numbers later follows those; params outside the space are passed over and
    counted in `num_skipped`.

    >>> from cerebro.search import RandomSampler, parse_space
    >>> space = parse_space({"lr": [0.1, 0.01]})
    >>> sampler = RandomSampler(space, seed=0, num_trials=2)
    >>> WarmSampler(sampler, space, first=[{"lr": 0.5}]).ask(0)
    {'lr': 0.5}
    """

    def __init__(
        self,
        inner: Sampler,
        space: Space,
        *,
        first: Sequence[Params] = (),
        known: Sequence[tuple[Params, Outcome]] = (),
    ) -> None:
        self.num_trials = inner.num_trials
        self.is_adaptive = inner.is_adaptive
        if inner.num_trials is not None and len(first) > inner.num_trials:
            raise UsageError(
                f"`num_trials` must be at least the number of params to try first, but got "
                f"num_trials={inner.num_trials} and warm_start with {len(first)}."
            )
        self._inner = inner
        self._first = [_check_params(space, number, params) for number, params in enumerate(first)]
        inside = [(params, outcome) for params, outcome in known if space.has(params)]
        #: How many of the known trials were told, and how many are outside the space.
        self.num_known = len(inside)
        self.num_skipped = len(known) - len(inside)
        for number, (params, outcome) in enumerate(inside, start=1):
            inner.tell(-number, params, outcome)

    def ask(self, number: int) -> Params | None:
        check_proposal(number)
        if number < len(self._first):
            return copy.deepcopy(self._first[number])
        return self._inner.ask(number)

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        self._inner.tell(number if number >= 0 else number - self.num_known, params, outcome)


def _check_params(space: Space, number: int, params: Params) -> dict[str, Json]:
    where = f"warm_start[{number}]"
    if not isinstance(params, dict):
        raise UsageError(f"{where} must be a dict of params, but got {show(params)}.")
    for name in params:
        if name not in space:
            raise UsageError(f"{where}: {unknown('parameter', str(name), space)}")
    missing = [name for name in space if name not in params]
    if missing:
        raise UsageError(
            f"{where} must have a value for every parameter of the space, but "
            f"{', '.join(missing)} is missing."
        )
    return {name: plain(params[name]) for name in space}
