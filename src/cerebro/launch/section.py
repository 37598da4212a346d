"""The `launch` section of an experiment file: for the batch system that it names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from cerebro.errors import UsageError

#: What `kind` may say for each command; a section without one is for SLURM.
KINDS: Mapping[str, tuple[str, ...]] = {
    "slurm": ("slurm",),
    "k8s": ("k8s", "rayjob", "raycluster", "job"),
}


def read_section(
    section: Mapping[str, Any],
    command: str,
    *,
    texts: Collection[str],
    numbers: Collection[str],
    lists: Collection[str] = (),
) -> dict[str, Any]:
    """What a section says to a command; nothing if it is for another one.

    >>> section = {"kind": "slurm", "nodes": 8}
    >>> read_section(section, "slurm", texts=["time"], numbers=["nodes"])
    {'kind': 'slurm', 'nodes': 8}
    >>> read_section(section, "k8s", texts=["image"], numbers=["nodes"])
    {}
    """
    kind = section.get("kind", "slurm" if section else command)
    owner = next((name for name, kinds in KINDS.items() if kind in kinds), None)
    if owner is None:
        known = ", ".join(name for kinds in KINDS.values() for name in kinds)
        raise UsageError(f"`launch.kind` must be one of {known}, but got {kind!r}.")
    if owner != command:
        return {}
    known_keys = (*texts, *numbers, *lists)
    for key, value in section.items():
        if key == "kind":
            continue
        if key not in known_keys:
            raise UsageError(f"unknown key of launch {key!r}. Known keys: {', '.join(known_keys)}.")
        wanted = "a whole number" if key in numbers else "text" if key in texts else "a list"
        if not _is(value, wanted):
            raise UsageError(f"`launch.{key}` must be {wanted}, but got {value!r}.")
    return dict(section)


def _is(value: object, wanted: str) -> bool:
    if wanted == "a list":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if wanted == "text":
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool)
