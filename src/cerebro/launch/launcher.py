"""The Launcher seam: where the services of a workspace live."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, cast

from cerebro.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """A service that answers; its URL holds the token."""

    name: str
    port: int
    url: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Overview:
    """What a workspace has after a verb was carried out, and what there is to say about it."""

    workspace: Path
    host: str
    endpoints: tuple[Endpoint, ...] = ()
    #: For people: what was started, found dead, is missing.
    notes: tuple[str, ...] = ()
    #: Services that were to start and did not.
    failed: tuple[str, ...] = ()


class Launcher(Protocol):
    """Starts, shows and ends the services of one workspace."""

    def start(self, *, workers: int | None = None, runs: str | None = None) -> Overview:
        """Start what is not running; ``workers`` and ``runs`` are remembered."""
        ...

    def url(self) -> Overview:
        """What is running."""
        ...

    def stop(self) -> Overview:
        """End what was started, and nothing else."""
        ...


#: Where services may live -> `module:Class`, or None for what is not there yet.
LAUNCHERS: Mapping[str, str | None] = {
    "local": "cerebro.launch.local:LocalLauncher",
    "ray": None,
    "k8s": None,
}


def open_launcher(on: str, workspace: Path) -> Launcher:
    """The launcher of a workspace.

    >>> open_launcher("k8s", Path("."))
    Traceback (most recent call last):
    cerebro.errors.UsageError: services can be started on local only, not on 'k8s' yet.
    """
    reference = LAUNCHERS.get(on)
    if reference is None:
        known = ", ".join(name for name, found in LAUNCHERS.items() if found)
        yet = " yet" if on in LAUNCHERS else ""
        raise UsageError(f"services can be started on {known} only, not on {on!r}{yet}.")
    module, _, name = reference.partition(":")
    return cast("Launcher", getattr(importlib.import_module(module), name)(workspace))
