"""The way from an experiment to TensorBoard."""

from __future__ import annotations

import os
import shlex
from html import escape
from pathlib import Path

from cerebro.errors import CerebroError
from cerebro.storage import Store
from cerebro.storage.workspace import Service, find_workspace, read_services
from cerebro.track.notebook_html import framed


def tensorboard_link(store: Store) -> str:
    """A button that opens TensorBoard, if the workspace has one running; else how to get it.

    Args:
        store: That of a run, or of several.
    """
    path = store.where()
    service = find_tensorboard(path)
    if service is not None:
        url = escape(service.url, quote=True)
        button = f'<a class="button" href="{url}" target="_blank" rel="noopener">TensorBoard</a>'
        return framed(button)
    command = f"tensorboard --logdir {shlex.quote(path)}"
    return framed(
        "<div>TensorBoard: <code>cerebro start</code> in the directory of the notebooks brings it "
        f"up, or <code>{escape(command)}</code>.</div>"
    )


def find_tensorboard(path: str) -> Service | None:
    """The TensorBoard of the workspace that a directory, or else this process, is in."""
    for start in (path, "."):
        workspace = find_workspace(start)
        service = None if workspace is None else _running(workspace)
        if service is not None:
            return service
    return None


def _running(workspace: Path) -> Service | None:
    try:
        known = read_services(workspace)
    except (CerebroError, OSError):
        return None
    services = () if known is None else known.services
    found = next((service for service in services if service.name == "tensorboard"), None)
    return found if found is not None and _exists(found.pid) else None


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True
