"""What is said about a wrong experiment file: one paragraph that names its line."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from pydantic_core import ErrorDetails

from cerebro.config.yaml import Document, KeyPath, Place
from cerebro.errors import ConfigError
from cerebro.search.wording import show, unknown
from cerebro.types import Json

# Missing keys have no line; they are told last.
_LAST = 2 * sys.maxsize


class Problem(NamedTuple):
    """Something wrong; problems sort in reading order."""

    place: Place
    message: str


def problem_at(document: Document, keys: Iterable[str], message: str) -> Problem:
    """A problem with the first of these keys that the file has, or with what the file lacks."""
    for key in keys:
        if any(path[:1] == (key,) for path in document.places):
            return Problem(document.place(_blamed(document, key, message)), message)
    return Problem(Place(_LAST, document.source), message)


def describe(detail: ErrorDetails, document: Document, known: Iterable[str]) -> Problem:
    """One of pydantic's findings in our words; `known` are the keys at the top."""
    path = _written(detail["loc"], document.tree)
    key = ".".join(str(part) for part in path)
    kind = detail["type"]
    if kind == "missing":
        return Problem(Place(_LAST, document.source), f"the key {key!r} is missing.")
    place = document.place(path)
    if kind == "extra_forbidden":
        return Problem(place, unknown("key", key, known))
    if kind == "value_error":
        return Problem(place, f"`{key}`: {detail['ctx']['error']}")
    return Problem(place, wrong_value(detail, key))


def wrong_value(detail: ErrorDetails, key: str) -> str:
    """What a key's value must be, and what was got."""
    return f"`{key}` {_expectation(detail)}, but got {_got(detail['input'])}."


def report(problems: Sequence[Problem]) -> ConfigError:
    """The first problem, and how many more there are."""
    first, *others = sorted(problems, key=lambda problem: problem.place.line)
    count = len(others)
    more = f" ({count} more problem{'s' if count > 1 else ''}.)" if count else ""
    return ConfigError(f"{first.place.text}: {first.message}{more}")


def kind_of(value: object) -> str:
    """The kind of a value, in words.

    >>> kind_of([1, 2])
    'a list'
    """
    names: Mapping[type, str] = {
        bool: "a boolean",
        int: "an integer",
        float: "a number",
        str: "a string",
        list: "a list",
        dict: "a mapping",
    }
    return names.get(type(value), "nothing")


def _written(path: KeyPath, tree: Json) -> KeyPath:
    """As much of a path as the file has: one value may stand for a list of one."""
    found: list[str | int] = []
    for part in path:
        if part == "[key]" or (found and not isinstance(tree, dict | list)):
            break
        found.append(part)
        tree = _below(tree, part)
    return tuple(found)


def _below(tree: Json, part: str | int) -> Json:
    if isinstance(tree, dict):
        return tree.get(str(part))
    return tree[part] if isinstance(tree, list) and isinstance(part, int) else None


def _blamed(document: Document, key: str, message: str) -> KeyPath:
    """What below a key the message speaks of: the name, or else the text, that it repeats."""
    path: KeyPath = (key,)
    # What may have been meant instead is not to blame.
    message = message.partition(" Did you mean")[0]
    numbered = re.match(rf"{re.escape(key)}\[(\d+)\]", message)
    if numbered:
        path = (key, int(numbered[1]))
    tree = document.tree
    for part in path:
        tree = _below(tree, part)
    leaves = [(path, tree), *_leaves(path, tree)]
    named = (below for below, _ in leaves[1:] if _names(message, str(below[-1])))
    quoted = (below for below, value in leaves if isinstance(value, str) and show(value) in message)
    return next(named, next(quoted, path))


def _names(message: str, name: str) -> bool:
    word = re.escape(name)
    return re.search(rf"'{word}'|`(\w+\.)?{word}\b|\b{word}=", message) is not None


def _leaves(path: KeyPath, tree: Json) -> Iterator[tuple[KeyPath, Json]]:
    if isinstance(tree, dict):
        for name, value in tree.items():
            yield (*path, name), value
            yield from _leaves((*path, name), value)
    elif isinstance(tree, list):
        for index, value in enumerate(tree):
            yield from _leaves((*path, index), value)


def _expectation(detail: ErrorDetails) -> str:
    if detail["type"] == "string_too_short":
        return "must not be empty"
    words = {
        "dict_type": "must be a mapping",
        "int_type": "must be an integer",
        "model_type": "must be a mapping",
    }
    text = words.get(detail["type"], detail["msg"])
    return text.replace("Input should be", "must be").replace("a valid ", "a ")


def _got(value: object) -> str:
    return f"{show(value)} ({kind_of(value)})" if value is not None else "nothing"
