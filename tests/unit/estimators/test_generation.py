from __future__ import annotations

import functools

import pytest

from cerebro.errors import UsageError
from cerebro.estimators.generation import Generation
from tests.unit.estimators.made import classifier


def code_of(function) -> str:
    return Generation(function, ["x"], ["y"]).code


def closing_over(value):
    return lambda params: classifier({"lr": value})


class Maker:
    def __init__(self, lr):
        self.lr = lr

    def __call__(self, params):
        return classifier({"lr": self.lr})

    def make(self, params):
        return self(params)


def given(params, lr):
    return classifier({"lr": lr})


def test_the_same_function_has_the_same_digest():
    assert code_of(classifier) == code_of(classifier)
    assert code_of(closing_over(1)) == code_of(closing_over(1))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (closing_over(1), closing_over(2)),
        (Maker(1), Maker(2)),
        (Maker(1).make, Maker(2).make),
        (functools.partial(given, lr=1), functools.partial(given, lr=2)),
        (lambda params: 1, lambda params: 2),
    ],
    ids=["closure", "object", "method", "partial", "code"],
)
def test_another_function_has_another_digest(one, other):
    assert code_of(one) != code_of(other)


def test_what_a_function_closes_over_need_not_be_known():
    assert code_of(closing_over(object()))


def test_something_that_cannot_be_called_is_refused():
    with pytest.raises(UsageError, match="estimator_gen_fn must be a function"):
        Generation("classifier", ["x"], ["y"])


def test_a_param_that_is_not_there_is_named():
    with pytest.raises(UsageError, match=r"params\['lr'\], but the trial has: depth"):
        Generation(classifier, ["x"], ["y"])({"depth": 1})
