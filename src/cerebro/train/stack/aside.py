"""A user's task while its steps are traced: what it keeps then is no number, and does not stay."""

from __future__ import annotations

import contextlib
import operator
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import NoneType, SimpleNamespace
from typing import Any

from cerebro.task import Task
from cerebro.train.told import TOLD

_CONTAINERS = (list, dict, set, deque, tuple)
#: What keeps nothing, and is there by the million.
_PLAIN = frozenset({int, float, complex, bool, str, bytes, NoneType})


@contextlib.contextmanager
def aside(task: Task) -> Iterator[Callable[[], bool]]:
    """Gives a block what says whether the task has changed, which it has not when the block ends.

    A change is another object as an attribute, or other elements in a container, of the task or of
    what it keeps: containers, and objects of classes that come from the same package. What is kept
    elsewhere (in the numbers of an array, in variables of a module) cannot be seen.
    """
    # What they held is kept, too, so that no other object gets its identity.
    before = [_Held(keeper, *_contents(keeper)) for keeper in _keepers(task)]
    try:
        yield lambda: any(held.has_changed() for held in before)
    finally:
        for held in before:
            if held.has_changed():
                held.put_back()


@dataclass(frozen=True, slots=True)
class _Held:
    """What something held: values, by name or key where they have one."""

    keeper: Any
    keys: list[Any]
    values: list[Any]

    def has_changed(self) -> bool:
        keys, values = _contents(self.keeper)
        return not (_are_same(values, self.values) and _are_same(keys, self.keys))

    def put_back(self) -> None:
        keeper = self.keeper
        if isinstance(keeper, dict):
            keeper.clear()
            # By key, as `update` of a Counter adds up.
            for key, value in zip(self.keys, self.values, strict=True):
                keeper[key] = value
        elif isinstance(keeper, set):
            keeper.clear()
            keeper.update(self.values)
        elif isinstance(keeper, list | deque):
            keeper.clear()
            keeper.extend(self.values)
        else:
            for name in {*_contents(keeper)[0]} - {*self.keys}:
                object.__delattr__(keeper, name)
            for name, value in zip(self.keys, self.values, strict=True):
                # A class may keep its users from this: it is not meant for us.
                object.__setattr__(keeper, name, value)


def _are_same(one: list[Any], other: list[Any]) -> bool:
    return len(one) == len(other) and all(map(operator.is_, one, other))


def _keepers(task: Task) -> list[Any]:
    """The task and what it keeps, and what that keeps."""
    package = _package(task)
    found, ahead = {id(task): task}, [task]
    while ahead:
        for value in _contents(ahead.pop())[1]:
            if type(value) not in _PLAIN and id(value) not in found and _keeps(value, package):
                found[id(value)] = value
                ahead.append(value)
    return list(found.values())


def _keeps(value: Any, package: str) -> bool:
    if isinstance(value, (*_CONTAINERS, SimpleNamespace)):
        return True
    # Objects of libraries have caches that are nobody's business.
    return _package(value) == package and not isinstance(value, type)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _contents(keeper: Any) -> tuple[list[Any], list[Any]]:
    if isinstance(keeper, dict):
        return list(keeper), list(keeper.values())
    if isinstance(keeper, _CONTAINERS):
        return [], list(keeper)
    # Of a class that has slots, these are the second of two.
    state = object.__getstate__(keeper)
    parts = state if isinstance(state, tuple) else (state,)
    found = {name: value for part in parts for name, value in (part or {}).items()}
    if isinstance(keeper, Task):
        found = {name: value for name, value in found.items() if name not in TOLD}
    return list(found), list(found.values())
