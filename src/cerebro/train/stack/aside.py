"""A user's task while its steps are traced: what it keeps then is no number, and does not stay."""

from __future__ import annotations

import contextlib
import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from cerebro.task import Task
from cerebro.train.told import TOLD

#: Of these it has copies meanwhile.
_CONTAINERS = (list, dict, set, deque)


@contextlib.contextmanager
def aside(task: Task) -> Iterator[Callable[[], bool]]:
    """Gives a block what says whether the task has changed, which it has not when the block ends.

    A change is another object as an attribute, or other elements in one that is a container. What
    is kept elsewhere, in variables of a module, say, cannot be seen.
    """
    attributes = vars(task)
    before = dict(attributes)
    for name, value in before.items():
        if type(value) in _CONTAINERS:
            attributes[name] = copy.copy(value)
    at_first = _picture(attributes)
    try:
        yield lambda: _picture(attributes) != at_first
    finally:
        attributes.clear()
        attributes.update(before)


def _picture(attributes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    own = attributes.keys() - TOLD.keys()
    return {name: (id(attributes[name]), *_elements(attributes[name])) for name in own}


def _elements(value: Any) -> list[int]:
    if type(value) not in _CONTAINERS:
        return []
    return [id(each) for each in (value.values() if isinstance(value, dict) else value)]
