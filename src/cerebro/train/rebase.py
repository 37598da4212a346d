"""A trial that begins with another's state has hyperparameters of its own."""

from __future__ import annotations

from collections.abc import Mapping

from cerebro.types import Json

#: The parts of a state's meta that hold hyperparameters, and what schedulers made of them.
_PARTS = ("groups", "scheduler", "objects")


def rebase_meta(
    saved: Mapping[str, Json], old: Mapping[str, Json], new: Mapping[str, Json]
) -> dict[str, Json]:
    """A state's meta with what differs between two fresh metas changed in it, too.

    >>> old, new = {"groups": [{"lr": 0.1, "foreach": None}]}, {"groups": [{"lr": 0.2}]}
    >>> rebase_meta({"groups": [{"lr": 0.01}], "steps": 5}, old, new)
    {'groups': [{'lr': 0.02}], 'steps': 5}
    """
    parts = {key: rebase(saved.get(key), old.get(key), new.get(key)) for key in _PARTS}
    return {**saved, **{key: value for key, value in parts.items() if key in saved}}


def rebase(saved: Json, old: Json, new: Json) -> Json:
    """What `saved`, which began as `old`, would be had it begun as `new`.

    What is the same in both stays as it is now; a number that a schedule has moved keeps its
    ratio; anything else is as it would begin.
    """
    if old == new:
        return saved
    if isinstance(saved, dict) and isinstance(old, dict) and isinstance(new, dict):
        return {
            **new,
            **{key: rebase(value, old.get(key), new.get(key)) for key, value in saved.items()},
        }
    if isinstance(saved, list) and isinstance(old, list) and isinstance(new, list):
        if len(saved) < len(old) or len(old) != len(new):
            return new
        # What was added in training, a group of parameters for example, stays.
        begun = [rebase(*three) for three in zip(saved, old, new, strict=False)]
        return [*begun, *saved[len(old) :]]
    numbers = (saved, old, new)
    if all(isinstance(n, int | float) and not isinstance(n, bool) for n in numbers):
        if saved == old or old == 0:
            return new
        return saved * new / old  # type: ignore[operator]  # numbers, as just checked
    return new
