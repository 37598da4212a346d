"""What domains are made from: plain values and ranges that hold, by hand and from JSON."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from cerebro.errors import UsageError
from cerebro.search.domain import (
    DOMAINS,
    Choice,
    Constant,
    Domain,
    Grid,
    LogUniform,
    QLogUniform,
    QUniform,
    RandInt,
    Uniform,
    plain,
)
from tests.unit.search.test_domain import draws


def test_changing_the_given_list_leaves_the_choice_alone() -> None:
    layers = [64]
    domain = Choice([layers])
    layers.append(1)
    assert domain.listed() == ([64],)


@pytest.mark.parametrize(
    ("make", "arguments", "kind"),
    [
        (Choice, [list(np.array([16, 32]))], int),
        (Grid, [[np.float32(0.5)]], float),
        (Constant, [np.int64(3)], int),
        (Uniform, [np.float64(0), np.float64(1)], float),
        (QUniform, [np.int64(16), np.int64(64), np.int64(16)], int),
        (RandInt, [np.int64(1), np.int64(3)], int),
    ],
)
def test_numpy_scalars_become_plain_values(make: Any, arguments: Any, kind: type) -> None:
    assert {type(value) for value in draws(make(*arguments))} == {kind}


def test_plain_refuses_subclasses_that_json_would_not_give_back() -> None:
    class Odd(str):
        pass

    with pytest.raises(UsageError, match="of type Odd"):
        plain(Odd("x"))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (
            Uniform,
            (
                1,
                0,
            ),
            "`low < high` must hold, but got low=1, high=0.",
        ),
        (
            Uniform,
            (
                1,
                1,
            ),
            "`low < high` must hold, but got low=1, high=1.",
        ),
        (
            Uniform,
            (
                0,
                math.inf,
            ),
            "finite number",
        ),
        (
            Uniform,
            (
                math.nan,
                1,
            ),
            "finite number",
        ),
        (
            Uniform,
            (
                "0",
                1,
            ),
            "`low` must be a number, but got low='0'.",
        ),
        (
            Uniform,
            (
                0,
                True,
            ),
            "`high` must be a number, but got high=True.",
        ),
        (
            Uniform,
            (
                0,
                10**400,
            ),
            "`high` must fit a float",
        ),
        (
            LogUniform,
            (
                0,
                1,
            ),
            "`low > 0` must hold on a log scale, but got low=0.",
        ),
        (
            QLogUniform,
            (
                -1,
                1,
                1,
            ),
            "`low > 0` must hold on a log scale",
        ),
        (
            QUniform,
            (
                0,
                10,
                0,
            ),
            "`0 < q <= high - low` must hold",
        ),
        (
            QUniform,
            (
                0,
                10,
                -1,
            ),
            "`0 < q <= high - low` must hold",
        ),
        (
            QUniform,
            (
                0,
                10,
                11,
            ),
            "but got low=0, high=10, q=11.",
        ),
        (
            RandInt,
            (
                0.5,
                2,
            ),
            "`low` must be an integer, but got low=0.5.",
        ),
        (
            RandInt,
            (
                0,
                2.0,
            ),
            "`high` must be an integer, but got high=2.0.",
        ),
        (Choice, ([],), "choice needs at least one value"),
        (Choice, ("abc",), "choice needs a list of values, but got 'abc'."),
        (Grid, (3,), "grid needs a list of values, but got 3."),
        (Choice, ([print],), "a parameter's value must be None"),
        (Choice, ([(1, 2)],), "of type tuple"),
        (Choice, ([{1: 2}],), "of type dict"),
        (Choice, ([math.nan],), "finite number"),
        (Choice, ([np.array([1, 2])],), "of type ndarray"),
        (Uniform.from_arguments, ([0],), "uniform needs [low, high], but got [0]."),
        (QUniform.from_arguments, ({"low": 0},), "quniform needs [low, high, q]"),
        (Choice.from_arguments, (5,), "choice needs a list of values, but got 5."),
    ],
)
def test_a_wrong_domain_says_what_must_hold(make: Any, arguments: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        make(*arguments)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    "domain",
    [
        Choice([1, "x", [2.5]]),
        Grid([None, True]),
        Constant({"a": [1]}),
        Uniform(0, 1),
        LogUniform(1e-4, 1e-1),
        QUniform(16, 256, 96),
        QLogUniform(0.1, 2.5, 0.1),
        RandInt(-3, 3),
    ],
    ids=lambda domain: domain.name,
)
def test_a_domain_comes_back_from_its_json(domain: Domain) -> None:
    ((name, arguments),) = domain.to_json().items()
    again = DOMAINS[name].from_arguments(arguments)
    assert again == domain
    assert type(again) is type(domain)


def test_the_table_of_domains_is_sorted() -> None:
    assert list(DOMAINS) == sorted(DOMAINS)
