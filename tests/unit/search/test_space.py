from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import UsageError
from cerebro.search.domain import Choice, Constant, Domain, Grid, LogUniform, Uniform
from cerebro.search.space import parse_space

names = st.from_regex(r"\A[A-Za-z_][A-Za-z0-9_.-]{0,10}\Z")
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=5,
)
domains: st.SearchStrategy[Domain] = (
    st.lists(values, min_size=1, max_size=4).map(Choice)
    | st.lists(values, min_size=1, max_size=4).map(Grid)
    | values.map(Constant)
    | st.just(LogUniform(1e-4, 1e-1))
)


def test_a_plain_list_is_a_choice() -> None:
    assert parse_space({"lr": [0.1, 0.01]})["lr"] == Choice([0.1, 0.01])


@pytest.mark.parametrize("value", [0.1, "adam", None, True, 3])
def test_a_plain_value_is_a_constant(value: object) -> None:
    assert parse_space({"p": value})["p"] == Constant(value)  # type: ignore[arg-type]


def test_a_domain_may_be_written_as_in_yaml() -> None:
    assert parse_space({"p": {"uniform": [0, 1]}})["p"] == Uniform(0, 1)


def test_a_mapping_is_a_constant_when_it_says_so() -> None:
    space = parse_space({"p": {"constant": {"uniform": [0, 1]}}})
    assert space["p"].listed() == ({"uniform": [0, 1]},)


def test_a_parsed_space_stays_itself() -> None:
    space = parse_space({"lr": [1]})
    assert parse_space(space) is space


@settings(max_examples=80, deadline=None)
@given(st.dictionaries(names, domains, max_size=4))
def test_a_space_comes_back_from_its_json(mapping: dict[str, Domain]) -> None:
    space = parse_space(mapping)
    again = parse_space(json.loads(json.dumps(space.to_json())))
    assert list(again.items()) == list(space.items())


def test_how_a_domain_is_written_does_not_matter() -> None:
    assert parse_space({"p": {"choice": [1, 2]}}).to_json() == parse_space({"p": [1, 2]}).to_json()


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (
            {"lr": LogUniform(1e-4, 1e-1)},
            "grid search needs listed values, but 'lr' is loguniform.",
        ),
        ({"lr": LogUniform(1e-4, 1e-1)}, "or use search='random' with num_trials"),
        ({"lr": [0.1, 0.1]}, "'lr' lists 0.1 more than once"),
    ],
)
def test_a_grid_that_cannot_be_says_what_to_do(space: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_space(space).listed()
    assert message in str(caught.value)


def test_a_grid_tells_one_from_true_and_from_a_float() -> None:
    assert len(parse_space({"p": [1, True, 1.0]}).listed()["p"]) == 3


@pytest.mark.parametrize(
    ("space", "message"),
    [
        (["lr"], "a search space must be a dict from names to domains, but got ['lr']."),
        ({1: [1]}, "a parameter's name must start with a letter"),
        ({"": [1]}, "but got ''."),
        ({"a b": [1]}, "but got 'a b'."),
        ({"a/b": [1]}, "but got 'a/b'."),
        ({"a\n": [1]}, "but got 'a\\n'."),
        ({"x" * 101: [1]}, "at most 100"),
        ({"lr": {"logunifrom": [1, 2]}}, "Did you mean 'loguniform'?"),
        ({"lr": {"logunifrom": [1, 2]}}, "parameter 'lr': unknown domain 'logunifrom'."),
        ({"lr": {"lr": 1, "name": 2}}, "a domain is one of choice, constant, grid"),
        ({"lr": {}}, "a domain is one of choice, constant, grid"),
        ({"lr": {"uniform": [1, 0]}}, "parameter 'lr': `low < high` must hold"),
        ({"lr": (1, 2)}, "parameter 'lr': a choice of values is written as a list, but got (1, 2)"),
        ({"lr": range(3)}, "got range(0, 3) of type range. Write list(...) around it"),
        ({"lr": np.array([1, 2])}, "of type ndarray. Write list(...) around it"),
        ({"lr": {0.1}}, "a choice of values is written as a list"),
        ({"act": print}, "build the object in the task"),
    ],
)
def test_a_wrong_space_names_the_parameter(space: object, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse_space(space)  # type: ignore[arg-type]
    assert message in str(caught.value)
