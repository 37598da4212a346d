"""Workspaces with services, asked over the network and looked at from outside."""

from __future__ import annotations

import http.client
import re
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import psutil

from cerebro.launch.service import MODULE, NAMES
from cerebro.storage.workspace import Settings, make_private, write_settings
from tests.ports import free_port

DEADLINE_S = 90.0


def cerebro(*words: str | Path, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run a command of the workspace."""
    return subprocess.run(
        [sys.executable, "-P", "-m", "cerebro", *map(str, words)],
        cwd=cwd,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def settle_ports(workspace: Path) -> None:
    """Let services have ports that nobody else gets while they are down."""
    make_private(workspace)
    write_settings(workspace, Settings(ports={name: free_port() for name in NAMES}))


def urls_in(output: str) -> dict[str, str]:
    """Service -> the address that a command printed."""
    return dict(re.findall(r"^(\w+) +(http://\S+)$", output, re.MULTILINE))


def token_of(url: str) -> str:
    return url.partition("token=")[2]


def ask(
    url: str, path: str, token: str | None, *, method: str = "GET", body: str | None = None
) -> tuple[int, str]:
    """The status and body of a page of the service at this address."""
    connection = http.client.HTTPConnection("127.0.0.1", urlsplit(url).port or 0, timeout=30)
    headers = {} if token is None else {"Authorization": f"token {token}"}
    try:
        connection.request(method, path, body=body, headers=headers)
        response = connection.getresponse()
        return response.status, response.read().decode("utf-8", "replace")
    finally:
        connection.close()


def processes_of(workspace: Path) -> list[psutil.Process]:
    """Everything alive that has to do with a workspace: services, and what they have started."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            is_service = words[2:4] == ["-m", MODULE] and words[-1] == str(workspace)
            if is_service and process.status() != psutil.STATUS_ZOMBIE:
                found += [process, *process.children(recursive=True)]
        except psutil.NoSuchProcess:
            continue
    return found
