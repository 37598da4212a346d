"""The `launch` section of an experiment file: for the batch system that it names."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from cerebro.config.yaml import KeyPath
from cerebro.errors import UsageError
from cerebro.search.wording import show, unknown


class Keys(NamedTuple):
    """What a section may say to a command of `cerebro launch`."""

    #: What `kind` may be.
    kinds: tuple[str, ...]
    texts: tuple[str, ...]
    numbers: tuple[str, ...]
    lists: tuple[str, ...] = ()


#: Those of each command; a section without a kind is for SLURM.
COMMANDS: Mapping[str, Keys] = {
    "slurm": Keys(
        kinds=("slurm",),
        texts=(
            *("job_name", "time", "constraint", "qos", "account", "partition", "reservation"),
            "output",
        ),
        numbers=("nodes", "procs_per_node", "cpus_per_task", "gpus_per_node", "signal_before"),
    ),
    "k8s": Keys(
        kinds=("k8s", "rayjob", "raycluster", "job"),
        texts=(
            *("name", "image", "memory", "head_memory", "namespace", "volume", "mount"),
            *("service_account", "workdir"),
        ),
        numbers=("nodes", "gpus", "cpus", "head_cpus", "restarts"),
        lists=("secrets",),
    ),
}


def read_section(section: Mapping[str, Any], command: str) -> dict[str, Any]:
    """What a section says to a command; nothing if it is for another one.

    >>> section = {"kind": "slurm", "nodes": 8, "time": 60}
    >>> read_section(section, "slurm")
    {'kind': 'slurm', 'nodes': 8, 'time': '60'}
    >>> read_section(section, "k8s")
    {}
    """
    for _, message in wrong_keys(section):
        raise UsageError(message)
    return _plain(section) if section and _owner(section) == command else {}


def wrong_keys(section: Mapping[str, Any]) -> Iterator[tuple[KeyPath, str]]:
    """The keys of a section that do not exist or cannot have their values, and what is wrong.

    >>> list(wrong_keys({"nodes": "8"}))
    [(('launch', 'nodes'), "`launch.nodes` must be a whole number, but got '8'.")]
    """
    owner = _owner(section)
    if owner is None:
        known = ", ".join(name for keys in COMMANDS.values() for name in keys.kinds)
        message = f"`launch.kind` must be one of {known}, but got {show(section['kind'])}."
        yield ("launch", "kind"), message
        return
    _, texts, numbers, lists = COMMANDS[owner]
    known_keys = ("kind", *texts, *numbers, *lists)
    for key, value in _plain(section).items():
        wanted = "a whole number" if key in numbers else "a list" if key in lists else "text"
        if key not in known_keys:
            yield ("launch", key), unknown("key of launch", key, known_keys)
        elif not _is(value, wanted):
            yield ("launch", key), f"`launch.{key}` must be {wanted}, but got {show(value)}."


def _owner(section: Mapping[str, Any]) -> str | None:
    """The command that a section is for."""
    kind = section.get("kind", "slurm")
    return next((name for name, keys in COMMANDS.items() if kind in keys.kinds), None)


def _plain(section: Mapping[str, Any]) -> dict[str, Any]:
    """The same with its time as text: YAML reads 1:00:00 so, but 60 as a number."""
    return {k: str(v) if k == "time" and type(v) is int else v for k, v in section.items()}


def _is(value: object, wanted: str) -> bool:
    if wanted == "a list":
        return isinstance(value, list) and all(isinstance(each, str) for each in value)
    if wanted == "text":
        return isinstance(value, str)
    return isinstance(value, int) and not isinstance(value, bool)
