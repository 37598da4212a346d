"""A task beside the user's own: what it keeps while a step is traced is no number."""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Mapping
from typing import Any

from cerebro.task import Task
from cerebro.train.told import TOLD

#: Of these a copy is given, too.
_CONTAINERS = (list, dict, set, deque)


class Aside:
    """A copy of a task, which has containers of its own, and whether it was changed.

    What is kept elsewhere, in variables of a module, say, cannot be seen.
    """

    def __init__(self, task: Task) -> None:
        self.task = copy.copy(task)
        for name, value in vars(task).items():
            if type(value) in _CONTAINERS:
                # A frozen dataclass is copied, too.
                object.__setattr__(self.task, name, copy.copy(value))
        self._before = _picture(vars(self.task))

    def has_changed(self) -> bool:
        """Whether an attribute is another one now, or has other elements."""
        return _picture(vars(self.task)) != self._before


def _picture(attributes: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    own = attributes.keys() - TOLD.keys()
    return {name: (id(attributes[name]), *_elements(attributes[name])) for name in own}


def _elements(value: Any) -> list[int]:
    if type(value) not in _CONTAINERS:
        return []
    return [id(each) for each in (value.values() if isinstance(value, dict) else value)]
