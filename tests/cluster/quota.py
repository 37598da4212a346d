"""A share of a processor for some processes: a control group with a quota, made by root."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from tests.processes import wait_for

_GROUPS = Path("/sys/fs/cgroup")
_PERIOD_US = 20_000


def why_not() -> str | None:
    """Why there can be no quotas here; None if there can."""
    if os.geteuid() != 0:
        return "control groups are made by root"
    return None if _parent() is not None else "needs the cpu controller of control groups"


@contextlib.contextmanager
def quota(share: float) -> Iterator[Path]:
    """A group whose processes have so much of one processor; write a pid to its cgroup.procs."""
    parent = _parent()
    assert parent is not None, why_not()
    group = parent / f"cerebro-test-{os.getpid()}"
    group.mkdir()
    allowed_us = round(share * _PERIOD_US)
    try:
        if (group / "cpu.max").exists():
            (group / "cpu.max").write_text(f"{allowed_us} {_PERIOD_US}")
        else:
            (group / "cpu.cfs_period_us").write_text(str(_PERIOD_US))
            (group / "cpu.cfs_quota_us").write_text(str(allowed_us))
        yield group
    finally:
        procs = group / "cgroup.procs"
        wait_for(lambda: not procs.read_text().strip(), f"nothing runs in {group}")
        group.rmdir()


def _parent() -> Path | None:
    """The group to make one in: version 1 of control groups, or 2 with the cpu controller on."""
    if (_GROUPS / "cpu" / "cpu.cfs_quota_us").exists():
        return _GROUPS / "cpu"
    controllers = _GROUPS / "cgroup.subtree_control"
    if controllers.exists() and "cpu" in controllers.read_text().split():
        return _GROUPS
    return None
