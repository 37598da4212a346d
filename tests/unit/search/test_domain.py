from __future__ import annotations

import json
import math
import random
from collections import Counter
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from cerebro.search.domain import (
    Choice,
    Constant,
    Domain,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
)

finite = st.floats(allow_nan=False, allow_infinity=False)
positive = st.floats(min_value=1e-300, allow_nan=False, allow_infinity=False)
seeds = st.integers(0, 2**64)
modest = settings(max_examples=60, deadline=None)


def draws(domain: Domain, count: int = 200, seed: int = 0) -> list[Any]:
    rng = random.Random(seed)
    return [domain.sample(rng) for _ in range(count)]


@modest
@given(finite, finite, seeds)
def test_uniform_never_leaves_its_range(low: float, high: float, seed: int) -> None:
    assume(low < high)
    assert low <= Uniform(low, high).sample(random.Random(seed)) <= high


@modest
@given(positive, positive, seeds)
def test_loguniform_never_leaves_its_range(low: float, high: float, seed: int) -> None:
    assume(low < high)
    assert low <= LogUniform(low, high).sample(random.Random(seed)) <= high


@modest
@given(st.sampled_from([QUniform, QLogUniform]), positive, positive, positive, seeds)
def test_a_quantised_float_is_a_multiple_inside_its_range(
    kind: type[QUniform], low: float, high: float, q: float, seed: int
) -> None:
    assume(low < high)
    assume(Fraction(repr(q)) <= Fraction(repr(high)) - Fraction(repr(low)))
    value = kind(low, high, q).sample(random.Random(seed))
    assert low <= value <= high
    # Rounding to a float may have moved it nearer to a neighbour.
    k = round(Fraction(value) / Fraction(repr(q)))
    near = (n * Fraction(repr(q)) for n in (k - 1, k, k + 1))
    assert value in {float(n) for n in near if n <= Fraction(high)}


@modest
@given(
    st.sampled_from([QUniform, QLogUniform]),
    st.integers(1, 1000),
    st.integers(1, 1000),
    st.integers(1, 1000),
    seeds,
)
def test_a_quantised_integer_is_an_int_and_a_multiple(
    kind: type[QUniform], low: int, q: int, extra: int, seed: int
) -> None:
    value = kind(low, low + q + extra, q).sample(random.Random(seed))
    assert type(value) is int
    assert low <= value <= low + q + extra
    assert value % q == 0


@modest
@given(st.integers(), st.integers(0, 10**6), seeds)
def test_randint_never_leaves_its_range(low: int, width: int, seed: int) -> None:
    value = RandInt(low, low + width + 1).sample(random.Random(seed))
    assert type(value) is int
    assert low <= value <= low + width + 1


parts = st.floats(0, 1, exclude_max=True)
ANY = [
    Choice([1, "x", [2.5], None]),
    Choice([{"a": RandInt(1, 3), "b": [1, 2]}, {"c": 1}, 7]),
    Constant({"a": [1]}),
    Uniform(-1, 1),
    LogUniform(1e-4, 1e-1),
    QUniform(16, 256, 96),
    QUniform(0.1, 0.7, 0.1),
    QLogUniform(0.1, 2.5, 0.1),
    QLogUniform(1, 1e300, 1),
    RandInt(-3, 3),
    RandInt(0, 10**30),
]


@pytest.mark.parametrize("domain", ANY, ids=repr)
@modest
@given(part=parts, seed=seeds)
def test_what_stands_at_a_part_or_is_drawn_is_in_the_domain(
    domain: Domain, part: float, seed: int
) -> None:
    for value in (domain.at(part), domain.sample(random.Random(seed))):
        assert domain.has(value)
        assert repr(json.loads(json.dumps(value))) == repr(value)
    assert domain.at(part) == domain.at(part)


@pytest.mark.parametrize("domain", ANY[3:], ids=repr)
@modest
@given(one=parts, other=parts)
def test_a_larger_part_is_never_a_smaller_number(domain: Any, one: float, other: float) -> None:
    assert domain.at(min(one, other)) <= domain.at(max(one, other))


@modest
@given(st.floats(-300, 299), st.floats(0.01, 1), parts)
def test_a_log_scale_is_the_same_in_every_base(low: float, width: float, part: float) -> None:
    exponent = low + width * part
    assert LogUniform(10**low, 10 ** (low + width)).at(part) == pytest.approx(10**exponent)


@pytest.mark.parametrize(
    ("domain", "values"),
    [
        (QUniform(16, 256, 96), [96, 192]),
        (QUniform(0.1, 0.3, 0.1), [0.1, 0.2, 0.3]),
        (RandInt(-1, 1), [-1, 0, 1]),
        (Choice(["a", [1]]), ["a", [1]]),
        (Constant(5), [5]),
    ],
    ids=repr,
)
def test_even_parts_give_every_value_equally_often(domain: Domain, values: list[Any]) -> None:
    found = [domain.at((k + 0.5) / 600) for k in range(600)]
    assert [found.count(value) for value in values] == [600 // len(values)] * len(values)


@pytest.mark.parametrize(
    ("domain", "value"),
    [
        (Uniform(0, 1), 1.1),
        (Uniform(0, 1), "0.5"),
        (Uniform(0, 1), True),
        (LogUniform(1e-4, 1e-1), math.nan),
        (QUniform(0, 10, 2), 3),
        (QUniform(0, 1, 0.1), 0.25),
        (QUniform(0, 10, 2), math.inf),
        (RandInt(1, 3), 4),
        (RandInt(1, 3), 2.0),
        (Choice([1, "a"]), True),
        (Choice([1, "a"]), 1.0),
        (Choice([{"a": [1, 2]}, {"b": Uniform(0, 1)}]), {"a": 3}),
        (Choice([{"a": [1, 2]}, {"b": Uniform(0, 1)}]), {"a": 1, "b": 0.5}),
        (Constant(None), 0),
    ],
    ids=repr,
)
def test_what_is_not_in_the_domain_is_told_apart(domain: Domain, value: Any) -> None:
    assert not domain.has(value)


def test_quniform_gives_only_the_multiples_inside() -> None:
    assert set(draws(QUniform(16, 256, 96))) == {96, 192}


def test_quniform_gives_its_ends_their_full_share() -> None:
    counts = Counter(draws(QUniform(0, 4, 1), 5000))
    assert set(counts) == {0, 1, 2, 3, 4}
    assert min(counts.values()) > 850


def test_quniform_reaches_an_end_that_floats_would_miss() -> None:
    assert set(draws(QUniform(0.1, 0.3, 0.1))) == {0.1, 0.2, 0.3}


def test_qloguniform_prefers_the_small() -> None:
    values = draws(QLogUniform(1, 1000, 1), 2000)
    assert 0.4 < sum(value <= 31 for value in values) / 2000 < 0.6


def test_qloguniform_never_rounds_to_zero() -> None:
    assert min(draws(QLogUniform(1e-4, 1e-1, 5e-4), 2000)) == 5e-4


def test_loguniform_spreads_over_the_decades() -> None:
    values = draws(LogUniform(1e-4, 1e-1), 3000)
    counts = Counter(math.floor(math.log10(value)) for value in values)
    assert all(900 < counts[decade] < 1100 for decade in (-4, -3, -2))


def test_randint_includes_both_ends() -> None:
    assert set(draws(RandInt(1, 3))) == {1, 2, 3}


def test_choice_keeps_mixed_types() -> None:
    values = [1, 1.5, "1", None, True, [1, 2], {"a": 1}]
    drawn = draws(Choice(values), 500)
    assert all(value in values for value in drawn)
    assert {type(value) for value in drawn} == {int, float, str, type(None), bool, list, dict}


def test_changing_a_drawn_list_leaves_the_choice_alone() -> None:
    domain = Choice([[64]])
    drawn = domain.sample(random.Random(0))
    assert isinstance(drawn, list)
    drawn.append(1)
    assert domain.listed() == ([64],)


def test_sample_value_of_two_equal_domains_is_not_in_lock_step() -> None:
    one, other = Uniform(0, 1), Uniform(0, 1)
    pairs = [(one.sample_value(), other.sample_value()) for _ in range(500)]
    assert abs(np.corrcoef(np.array(pairs).T)[0, 1]) < 0.2


def test_the_same_state_gives_the_same_value() -> None:
    assert draws(QLogUniform(1, 1000, 1), seed=3) == draws(QLogUniform(1, 1000, 1), seed=3)
