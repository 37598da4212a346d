"""What a task is told of the run it is in: attributes that are ours to set."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator

from cerebro.errors import UsageError
from cerebro.task import RunFacts, Task
from cerebro.train.meter import Meter

#: Attributes of a task -> what we put there.
TOLD: dict[str, type] = {"facts": RunFacts, "meter": Meter}


def tell(task: Task, name: str, value: RunFacts | Meter | None) -> None:
    """Set an attribute, of a frozen dataclass too.

    >>> task = Task()
    >>> tell(task, "facts", RunFacts(shard_rows=(8,)))
    >>> task.facts.steps_per_epoch(4)
    2
    """
    # What a class does to keep its users from changing its objects is not meant for us.
    object.__setattr__(task, name, value)


@contextlib.contextmanager
def told(task: Task, name: str, value: RunFacts | Meter | None) -> Iterator[None]:
    """The same for a while."""
    is_own, before = name in vars(task), getattr(task, name)
    tell(task, name, value)
    try:
        yield
    finally:
        if is_own:
            tell(task, name, before)
        else:
            object.__delattr__(task, name)


def require_untold(task: Task) -> None:
    """Refuse a task that has something of its own where it is to be told something."""
    for name, kind in TOLD.items():
        # Not what a property says, but that there is one.
        found = vars(task).get(name, inspect.getattr_static(type(task), name))
        if found is not None and not isinstance(found, kind):
            raise UsageError(
                f"{type(task).__name__}.{name} must be left to Cerebro, which sets it on workers, "
                f"but the task has a {type(found).__name__} there. Give that another name."
            )
