"""Servers outlive single tests: what a test leaves behind is looked for beside them."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

# Before anything imports Ray, which looks at them then.
os.environ.update(
    RAY_AUTH_MODE="token",
    RAY_AUTH_TOKEN=secrets.token_hex(32),
    RAY_USAGE_STATS_ENABLED="0",
    # What this leaves out is told there.
    PYTHONPATH=os.pathsep.join(
        filter(None, [f"{Path(__file__).parent}/lean", os.environ.get("PYTHONPATH")])
    ),
)

import psutil
import pytest

from tests.cluster.downloads import CACHE, DOWNLOAD_S
from tests.cluster.sparks import ENVIRONMENT
from tests.conftest import (
    GRACE_S,
    end,
    is_running,
    leaked_children,
    leaked_files,
    leaked_threads,
    observe,
    restore_environ,
    wait_until_none,
)

#: For a test that does not say it, with the servers it starts and what they have to be fetched.
TIMEOUT_S = DOWNLOAD_S + 300.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        # It warns of every pandas that is newer than itself.
        item.add_marker(pytest.mark.filterwarnings("ignore:.*pandas.*"))


@pytest.fixture(autouse=True, scope="session")
def server_environment() -> Iterator[None]:
    """What servers and their Python processes are to find, and a place for downloads."""
    # Else the first test that needs one would be said to have left it.
    CACHE.mkdir(parents=True, exist_ok=True)
    before = {name: os.environ.get(name) for name in ENVIRONMENT}
    os.environ.update(ENVIRONMENT)
    yield
    for name, value in before.items():
        if value is None:
            os.environ.pop(name)
        else:
            os.environ[name] = value


def is_of_server(process: psutil.Process) -> bool:
    """Whether a process belongs to a JVM or to Ray, and is no worker of ours on Ray."""
    try:
        names = {process.name(), *(parent.name() for parent in process.parents())}
        command = " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return True
    is_worker = any(f"cerebro.backend.{name}" in command for name in ("worker", "gang.rank"))
    return "java" in names or ("raylet" in names and not is_worker)


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Fail a test that leaves a process, a thread, an environment variable or a file."""
    before = observe()
    yield
    children = wait_until_none(
        lambda: [c for c in leaked_children(before) if is_running(c) and not is_of_server(c)],
        GRACE_S,
    )
    leaks = {
        "processes": [end(child) for child in children],
        "threads": wait_until_none(lambda: leaked_threads(before), GRACE_S),
        "environment variables": restore_environ(before),
        "files": [str(path) for path in leaked_files(before)],
    }
    found = {kind: things for kind, things in leaks.items() if things}
    if found:
        pytest.fail(f"the test left behind: {found}", pytrace=False)
