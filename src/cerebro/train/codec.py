"""Plain values to JSON and back, exactly: tuples, counters and infinities survive."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import cast

import numpy as np

from cerebro.errors import UsageError
from cerebro.types import Json

_TAG = "~"


def plain_text(text: str) -> str:
    """The text alone: a subclass, such as a StrEnum, may be unknown where it arrives."""
    return str.__str__(text)


def encode(
    value: object, where: str, outside: Callable[[object], Json | None] | None = None
) -> Json:
    """Turn `value` into JSON from which `decode` gives back an equal value of the same type.

    Subclasses of numbers and text become plain numbers and text. What `outside` gives something
    for (a tensor) is kept elsewhere: `decode` gets it from what was given.

    >>> decode(encode({"betas": (0.9, 0.999), 3: float("inf")}, "example"))
    {'betas': (0.9, 0.999), 3: inf}
    """
    if outside is not None and (found := outside(value)) is not None:
        return {_TAG: "outside", "v": found}
    if isinstance(value, np.generic):
        return encode(value.item(), where)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return plain_text(value)
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        value = float(value)
        return value if math.isfinite(value) else {_TAG: "float", "v": repr(value)}
    if isinstance(value, list):
        return [encode(item, where, outside) for item in value]
    if isinstance(value, tuple):
        return {_TAG: "tuple", "v": [encode(item, where, outside) for item in value]}
    if isinstance(value, Mapping):
        return _encode_mapping(value, where, outside)
    raise UsageError(
        f"{where} must hold numbers, text, lists, tuples and dicts alone to travel with "
        f"the trial, but has a {type(value).__name__}: {value!r:.80}."
    )


def _encode_mapping(
    value: Mapping[object, object], where: str, outside: Callable[[object], Json | None] | None
) -> Json:
    is_counter = isinstance(value, Counter)
    if not is_counter and all(isinstance(key, str) and key != _TAG for key in value):
        return {plain_text(cast(str, k)): encode(v, where, outside) for k, v in value.items()}
    pairs: list[Json] = [[encode(k, where), encode(v, where, outside)] for k, v in value.items()]
    return {_TAG: "counter" if is_counter else "dict", "v": pairs}


def decode(value: Json, outside: Callable[[Json], object] | None = None) -> object:
    """The inverse of `encode`."""
    if isinstance(value, list):
        return [decode(item, outside) for item in value]
    if not isinstance(value, dict):
        return value
    kind, inner = value.get(_TAG), value.get("v")
    if kind is None:
        return {key: decode(item, outside) for key, item in value.items()}
    if kind == "float":
        return float(str(inner))
    if kind == "outside" and outside is not None:
        return outside(inner)
    items = inner if isinstance(inner, list) else []
    if kind == "tuple":
        return tuple(decode(item, outside) for item in items)
    pairs = {decode(pair[0]): decode(pair[1], outside) for pair in items if isinstance(pair, list)}
    return Counter(pairs) if kind == "counter" else pairs
