"""Arguments as people write them, checked one by one."""

from __future__ import annotations

import operator
import os
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import SupportsIndex, TypeVar, cast

from cerebro.errors import UsageError
from cerebro.search.wording import show
from cerebro.spec import MiniBatchSpec
from cerebro.task import Task
from cerebro.train.spec.task import as_task

_KINDS: Mapping[type, str] = {str: "a string", os.PathLike: "a path"}
_Choice = TypeVar("_Choice", bound=StrEnum)


def count(name: str, value: object) -> int:
    """A plain number of at least 1; NumPy's integers are taken as well.

    >>> count("workers", 2)
    2
    >>> count("workers", True)
    Traceback (most recent call last):
    cerebro.errors.UsageError: `workers >= 1` must hold, but got workers=True.
    """
    if isinstance(value, SupportsIndex) and not isinstance(value, bool):
        found = operator.index(value)
        if found >= 1:
            return found
    raise UsageError(f"`{name} >= 1` must hold, but got {name}={show(value)}.")


def optional_count(name: str, value: object) -> int | None:
    """The same, or None."""
    return None if value is None else count(name, value)


def seed_of(value: object) -> int:
    """A seed: a whole number that fits 63 bits."""
    if isinstance(value, bool) or not isinstance(value, SupportsIndex):
        raise UsageError(f"`seed` must be an integer, but got {show(value)}.")
    if not 0 <= operator.index(value) < 2**63:
        raise UsageError(f"`0 <= seed < 2**63` must hold, but got seed={value}.")
    return operator.index(value)


def flag(name: str, value: object) -> bool:
    """True or False, nothing that is merely like it."""
    if isinstance(value, bool):
        return value
    raise UsageError(f"`{name}` must be True or False, but got {show(value)}.")


def check_type(name: str, value: object, *kinds: type) -> None:
    """Raise unless the value is of one of these kinds: text, or a path."""
    # A boolean is an int to Python, not to a person.
    if isinstance(value, bool) or not isinstance(value, kinds):
        wanted = " or ".join(_KINDS[kind] for kind in kinds)
        raise UsageError(f"`{name}` must be {wanted}, but got {show(value)}.")


def one_of(name: str, value: str, kind: type[_Choice]) -> _Choice:
    """The member of a closed set that is written like this."""
    try:
        return kind(value)
    except ValueError:
        known = ", ".join(kind)
        raise UsageError(f"{name} must be one of {known}, but got {value!r}.") from None


def task_of(value: object) -> Task | str:
    """What is to be trained: a task, one made of a MiniBatchSpec, or the name of a class."""
    if isinstance(value, MiniBatchSpec):
        return as_task(value)
    if isinstance(value, Task | str):
        return value
    hint = f" Make one: {value.__name__}()." if isinstance(value, type) else ""
    raise UsageError(
        "the task must be an object of a subclass of cerebro.Task or cerebro.MiniBatchSpec, or "
        f"named as `module:Class`, but got {show(value)}.{hint}"
    )


def ranked_by(
    metric: str | Sequence[str] | None, mode: str | Sequence[str] | None, *, has_validation: bool
) -> tuple[str | Sequence[str], str | Sequence[str]]:
    """What ranks trials, and which way: as asked for, else the loss.

    >>> ranked_by(None, None, has_validation=True)
    ('val_loss', 'min')
    """
    if metric is None and mode in (None, "min"):
        return ("val_loss" if has_validation else "train_loss"), "min"
    for name, value in (("metric", metric), ("mode", mode)):
        for each in value if isinstance(value, list | tuple) else [value]:
            check_type(name, each, str)
    return cast("str | Sequence[str]", metric), cast("str | Sequence[str]", mode)
