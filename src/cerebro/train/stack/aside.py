"""A user's task while its steps are traced: what it keeps then is no number, and does not stay."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from torch import Tensor, nn

from cerebro.task import Task
from cerebro.train.told import TOLD

_CONTAINERS = (list, dict, set, deque)
#: What it holds, by name, key or place.
_Contents = list[tuple[Any, Any]]


@contextlib.contextmanager
def aside(task: Task) -> Iterator[Callable[[], bool]]:
    """Gives a block what says whether the task has changed, which it has not when the block ends.

    A change is another object as an attribute, or other elements in a container, of the task or of
    what it keeps: containers, and objects of classes that come from the same package. What is kept
    elsewhere (in the numbers of an array, in variables of a module) cannot be seen.
    """
    # What they held is kept, too, so that no other object gets its identity.
    before = [(keeper, _contents(keeper)) for keeper in _keepers(task)]
    try:
        yield lambda: any(_has_changed(keeper, held) for keeper, held in before)
    finally:
        for keeper, held in before:
            if _has_changed(keeper, held):
                _restore(keeper, held)


def _keepers(task: Task) -> list[Any]:
    """The task and what it keeps, and what that keeps."""
    package = _package(task)
    found, ahead = {id(task): task}, [task]
    while ahead:
        for _, value in _contents(ahead.pop()):
            if id(value) not in found and _is_keeper(value, package):
                found[id(value)] = value
                ahead.append(value)
    return list(found.values())


def _is_keeper(value: Any, package: str) -> bool:
    if isinstance(value, (*_CONTAINERS, SimpleNamespace)):
        return True
    # Objects of libraries have caches that are nobody's business.
    is_own = hasattr(value, "__dict__") and _package(value) == package
    return is_own and not isinstance(value, type | nn.Module | Tensor)


def _package(value: Any) -> str:
    return type(value).__module__.partition(".")[0]


def _contents(keeper: Any) -> _Contents:
    if isinstance(keeper, dict):
        return list(keeper.items())
    if isinstance(keeper, _CONTAINERS):
        return list(enumerate(keeper))
    return list(vars(keeper).items())


def _has_changed(keeper: Any, held: _Contents) -> bool:
    return _picture(keeper, _contents(keeper)) != _picture(keeper, held)


def _picture(keeper: Any, contents: _Contents) -> list[tuple[Any, int]]:
    ours = TOLD if isinstance(keeper, Task) else ()
    if isinstance(keeper, dict):
        # Keys are hashed, and may be compared in ways of their own.
        return [(id(key), id(value)) for key, value in contents]
    return [(key, id(value)) for key, value in contents if key not in ours]


def _restore(keeper: Any, held: _Contents) -> None:
    if isinstance(keeper, list | deque):
        keeper.clear()
        keeper.extend(value for _, value in held)
    elif isinstance(keeper, set):
        keeper.clear()
        keeper.update(value for _, value in held)
    else:
        # By key, as `update` of a Counter adds up.
        named = keeper if isinstance(keeper, dict) else vars(keeper)
        named.clear()
        for key, value in held:
            named[key] = value
