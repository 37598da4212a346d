from __future__ import annotations

import enum
import json
import math
from collections import Counter, OrderedDict

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.errors import UsageError
from cerebro.train.codec import decode, encode

scalars = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8)
)
keys = st.text(max_size=4) | st.integers() | st.booleans() | st.none() | st.just("~")
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), st.integers(), max_size=4).map(Counter)
    ),
    max_leaves=20,
)


def same(one, other):
    """Equal and of the same types all the way down, with -0.0 and 0.0 apart."""
    if type(one) is not type(other):
        return False
    if isinstance(one, float):
        return math.copysign(1, one) == math.copysign(1, other) and one == other
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, dict):
        pairs = zip(one.items(), other.items(), strict=True)
        return len(one) == len(other) and all(same([*a], [*b]) for a, b in pairs)
    return one == other


@settings(max_examples=200)
@given(values)
def test_a_value_comes_back_as_it_was_through_json(value):
    text = json.dumps(encode(value, "it"), allow_nan=False)
    assert same(decode(json.loads(text)), value)


@pytest.mark.parametrize("value", [math.inf, -math.inf, math.nan])
def test_numbers_that_json_lacks_come_back(value):
    found = decode(json.loads(json.dumps(encode(value, "it"), allow_nan=False)))
    assert repr(found) == repr(value)


@pytest.mark.parametrize(
    "value", [np.float64(0.1), np.float32(0.1), np.int64(7), np.bool_(True), np.float64("inf")]
)
def test_numpy_numbers_come_back_as_those_of_python(value):
    found = decode(json.loads(json.dumps(encode([value], "it"))))
    assert found == [value.item()]
    assert type(found[0]) is type(value.item())


def test_ordered_dicts_keep_their_order():
    value = OrderedDict([("b", 1), ("a", 2)])
    assert list(decode(encode(value, "it"))) == ["b", "a"]


@pytest.mark.parametrize("value", [{1, 2}, b"x", object(), 1j, [lambda: None], {"a": {"b": {3}}}])
def test_what_cannot_travel_is_named_with_its_place(value):
    with pytest.raises(UsageError, match=r"the scheduler's state must hold .* but has a "):
        encode(value, "the scheduler's state")


class Text(enum.StrEnum):
    A = "a"


class Number(enum.IntEnum):
    ONE = 1


class OldText(str, enum.Enum):  # noqa: UP042 - what people write
    A = "a"


class Real(float):
    pass


@pytest.mark.parametrize(
    ("value", "plain"),
    [(Text.A, "a"), (OldText.A, "a"), (Number.ONE, 1), (Real(0.5), 0.5), (Real("inf"), math.inf)],
)
def test_subclasses_of_numbers_and_text_are_reduced_to_them(value, plain):
    encoded = encode({"it": value}, "it")
    assert same(decode(encoded), {"it": plain})
    assert same(decode(encode({value: 1}, "it")), {plain: 1})
    assert '"a"' in json.dumps(encode(Text.A, "it"))


def test_nothing_but_plain_types_leaves():
    encoded = encode({Text.A: [Text.A, Number.ONE, Real(0.5)], "t": (Real(0.5),)}, "it")
    assert all(type(key) is str for key in encoded)
    assert [type(item) for item in encoded["a"]] == [str, int, float]
    assert type(encoded["t"]["v"][0]) is float


def test_what_lies_outside_is_named_and_found_again():
    kept = []

    def outside(value):
        if not isinstance(value, np.ndarray):
            return None
        kept.append(value)
        return [len(kept) - 1, "array"]

    value = {"a": (np.zeros(2), [1.5]), 3: {"b": np.ones(1)}, "~": np.ones(2)}
    encoded = json.loads(json.dumps(encode(value, "it", outside), allow_nan=False))
    found = decode(encoded, lambda given: kept[given[0]])
    assert found["a"][0] is kept[0]
    assert type(found["a"]) is tuple
    assert (found["a"][1], found[3]["b"], found["~"]) == ([1.5], kept[1], kept[2])
