"""Runs that are opened by hand, or end before they are through."""

from __future__ import annotations

import os
import signal
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from cerebro.backend import InlineBackend
from cerebro.backend.base import Event
from cerebro.run.recovery import OpenRun, open_run
from cerebro.run.spec import RunSpec
from cerebro.storage import DirectoryStore, layout
from cerebro.storage.journal import read
from tests.experiments import fit_toy


class Crash(Exception):
    """The driver is no more."""


def records_of(root: Path, kind: str, trial: int | None = None) -> list[dict[str, Any]]:
    """A run's durable records of one kind, of all trials or one."""
    if not (root / layout.JOURNAL).exists():
        return []
    found = [record for record in read(DirectoryStore(root)).records if record["type"] == kind]
    return [record for record in found if trial is None or record["trial"] == trial]


class CrashingBackend(InlineBackend):
    """Raises once so many records of a kind are durable."""

    def __init__(self, root: Path, kind: str, count: int, trial: int | None = None) -> None:
        super().__init__()
        self._crash_at = (root, kind, trial, count)

    def events(self) -> list[Event]:
        root, kind, trial, count = self._crash_at
        if len(records_of(root, kind, trial)) >= count:
            raise Crash
        return super().events()


class StoppedBackend(InlineBackend):
    """A signal arrives once so many records of a kind are durable."""

    def __init__(
        self, root: Path, count: int, kind: str = "visit", number: int = signal.SIGINT
    ) -> None:
        super().__init__()
        self._stop_at = (root, count, kind, number)
        self._is_stopped = False

    def events(self) -> list[Event]:
        root, count, kind, number = self._stop_at
        if not self._is_stopped and len(records_of(root, kind)) >= count:
            self._is_stopped = True
            os.kill(os.getpid(), number)
        return super().events()


def fit_until(
    root: Path,
    spec: RunSpec,
    count: int,
    kind: str = "visit",
    *,
    trial: int | None = 0,
    **settings: Any,
) -> None:
    """Run until a trial (or all) has so many durable records of a kind, then crash."""
    backend = CrashingBackend(root, kind, count, trial)
    try:
        fit_toy(root, spec, backend=backend, **settings)
    except Crash:
        return
    raise AssertionError("the run was finished before it could crash")


def opened(
    root: Path, spec: RunSpec, *, fresh: bool = False, force: bool = False
) -> AbstractContextManager[OpenRun]:
    """The run in a directory, as a driver would open it."""
    return open_run(DirectoryStore(root), spec, fresh=fresh, force=force)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file below a folder, apart from locks."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != layout.LOCK
    }
