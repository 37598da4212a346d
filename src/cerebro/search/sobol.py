"""Quasi-random search: trials that leave no large part of the space untried, however many they are.

The points are those of Sobol's sequence with the direction numbers of Joe and Kuo (2008), their
bits scrambled after Owen (1995): any 2**k trials in a row, counted from a multiple of 2**k, fall
one into each of the 2**k equal parts of every parameter's range.
"""

from __future__ import annotations

import hashlib
import json

from cerebro.errors import UsageError
from cerebro.search.decision import Outcome
from cerebro.search.domain import Choice, Constant, Domain
from cerebro.search.seeding import check_num_trials, check_proposal
from cerebro.search.space import Space
from cerebro.types import Json, Params

_BITS = 32

# From the second dimension on: a polynomial's inner coefficients, then its first direction numbers.
_JOE_KUO = """
0 1
1 1 3
1 1 3 1
2 1 1 1
1 1 1 3 3
4 1 3 5 13
2 1 1 5 5 17
4 1 1 5 5 5
7 1 1 7 11 19
11 1 1 5 1 1
13 1 1 1 3 11
14 1 3 5 5 31
1 1 3 3 9 7 49
13 1 1 1 15 21 21
16 1 3 1 13 27 49
19 1 1 1 15 7 5
22 1 3 1 15 13 25
25 1 1 5 5 19 61
1 1 3 7 11 23 15 103
4 1 3 7 13 13 15 69
7 1 1 3 13 7 35 63
8 1 3 5 9 1 25 53
14 1 3 1 13 9 35 107
19 1 3 1 5 27 61 31
21 1 1 5 11 19 41 61
28 1 3 5 3 3 13 69
31 1 1 7 13 1 19 1
32 1 3 7 5 13 19 59
37 1 1 3 9 25 29 41
41 1 3 5 13 23 1 55
42 1 3 7 3 13 59 17
50 1 3 1 3 5 53 69
55 1 1 5 5 23 33 13
56 1 1 7 7 1 61 123
59 1 1 7 9 13 61 49
62 1 3 3 5 3 55 33
14 1 3 1 15 31 13 49 245
21 1 3 5 15 31 59 63 97
22 1 3 1 11 11 11 77 249
38 1 3 1 11 27 43 71 9
47 1 1 7 15 21 11 81 45
49 1 3 7 3 25 31 65 79
50 1 3 1 1 19 11 3 205
52 1 1 5 9 19 21 29 157
56 1 3 7 11 1 33 89 185
67 1 3 3 3 15 9 79 71
70 1 3 7 11 15 39 119 27
84 1 1 3 1 11 31 97 225
97 1 1 1 3 23 43 57 177
103 1 3 7 7 17 17 37 71
115 1 3 1 5 27 63 123 213
122 1 1 3 5 11 43 53 133
8 1 3 5 5 29 17 47 173 479
13 1 3 3 11 3 1 109 9 69
16 1 1 1 5 17 39 23 5 343
22 1 3 1 5 25 15 31 103 499
25 1 1 1 11 11 17 63 105 183
44 1 1 5 11 9 29 97 231 363
47 1 1 5 15 19 45 41 7 383
52 1 3 7 7 31 19 83 137 221
55 1 1 1 3 23 15 111 223 83
59 1 1 5 13 31 15 55 25 161
62 1 1 3 13 25 47 39 87 257
"""

#: How many parameters with more than one value a space may have.
MAX_DIMENSIONS = 1 + len(_JOE_KUO.split("\n")[1:-1])


class SobolSampler:
    """Evenly spread draws. Trial n depends on (seed, n, space) alone.

    A parameter of a subspace has a dimension of its own, used by the trials that take its option.

    >>> from cerebro.search.space import parse_space
    >>> sampler = SobolSampler(parse_space({"width": [32, 64, 128, 256]}), seed=0, num_trials=8)
    >>> sorted(sampler.ask(number)["width"] for number in range(4))
    [32, 64, 128, 256]
    """

    is_adaptive = False

    def __init__(self, space: Space, *, seed: int, num_trials: int) -> None:
        self.num_trials: int | None = check_num_trials(num_trials)
        if num_trials > 2**_BITS:
            raise UsageError(
                f"`num_trials <= {2**_BITS}` must hold for search='sobol', but got "
                f"num_trials={num_trials}."
            )
        self._space = space
        self._seed = seed
        paths = [path for path, domain in space.walk() if _is_open(domain)]
        if len(paths) > MAX_DIMENSIONS:
            raise UsageError(
                f"search='sobol' spreads over at most {MAX_DIMENSIONS} parameters with more than "
                f"one value, but this space has {len(paths)}. Use search='random'."
            )
        self._directions = dict(zip(paths, _make_directions(), strict=False))

    def ask(self, number: int) -> Params | None:
        check_proposal(number)
        if self.num_trials is not None and number >= self.num_trials:
            return None
        return self._space.fill(_Point(self, number))

    def tell(self, number: int, params: Params, outcome: Outcome) -> None:
        """Evenly spread draws learn nothing."""

    def part(self, number: int, path: str) -> float:
        """Where point `number` lies in the dimension of a parameter, in [0, 1)."""
        point = 0
        for position, direction in enumerate(self._directions[path]):
            if number >> position & 1:
                point ^= direction
        return _scramble(point, json.dumps([self._seed, path]))


class _Point:
    """One point of the sequence, as a source of values."""

    def __init__(self, sampler: SobolSampler, number: int) -> None:
        self._sampler = sampler
        self._number = number

    def value(self, path: str, domain: Domain) -> Json:
        return domain.at(self._part(path, domain))

    def index(self, path: str, choice: Choice) -> int:
        return choice.index_at(self._part(path, choice))

    def _part(self, path: str, domain: Domain) -> float:
        return self._sampler.part(self._number, path) if _is_open(domain) else 0.0


def _is_open(domain: Domain) -> bool:
    if isinstance(domain, Choice):
        return len(domain.values) > 1
    return not isinstance(domain, Constant)


def _make_directions() -> list[list[int]]:
    """The direction numbers of every dimension, each with its highest bit first."""
    directions = [[1 << _BITS - 1 - position for position in range(_BITS)]]
    for line in _JOE_KUO.split("\n")[1:-1]:
        coefficients, *numbers = map(int, line.split())
        degree = len(numbers)
        while len(numbers) < _BITS:
            following = numbers[-degree] ^ numbers[-degree] << degree
            for step in range(1, degree):
                if coefficients >> degree - 1 - step & 1:
                    following ^= numbers[-step] << step
            numbers.append(following)
        directions.append([m << _BITS - 1 - position for position, m in enumerate(numbers)])
    return directions


def _scramble(point: int, key: str) -> float:
    """Flip every bit at random, by what stands before it; then fill up below the last one."""
    scrambled = 0
    for position in range(_BITS):
        before = point >> _BITS - position
        bit = point >> _BITS - 1 - position & 1
        scrambled = scrambled << 1 | bit ^ _draw(f"{key} {position} {before}") & 1
    # Twenty bits below 32 still fit a float, so that it stays below 1.
    return (scrambled + (_draw(f"{key} {point}") >> 12) / (1 << 20)) / (1 << _BITS)


def _draw(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=4).digest(), "big")
