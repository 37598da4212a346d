"""JupyterLab on the loopback interface, with the token of the workspace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from jupyterlab.labapp import LabApp

#: The plugin that asks whether to show news of the Jupyter project.
NEWS = "@jupyterlab/apputils-extension:announcements"


def serve(*, port: int, token: str, runs: Path, workspace: Path) -> None:
    """Serve notebooks of the workspace until the process is ended."""
    # As if given on the command line, which outranks what is in the user's own settings; yet no
    # other process can read it there.
    options = [
        "--ServerApp.ip=127.0.0.1",
        f"--ServerApp.port={port}",
        "--ServerApp.port_retries=0",
        "--ServerApp.open_browser=False",
        f"--ServerApp.root_dir={workspace}",
        f"--IdentityProvider.token={token}",
        "--LabApp.news_url=None",
        "--LabApp.check_for_updates_class=jupyterlab.NeverCheckForUpdate",
    ]
    if os.geteuid() == 0:
        options.append("--ServerApp.allow_root=True")
    server = LabApp.initialize_server(argv=options)
    server.web_app.settings["page_config_hook"] = _without_news
    server.start()


def _without_news(handler: object, page: dict[str, Any]) -> dict[str, Any]:
    """Nobody is asked whether to fetch news: there are none to fetch."""
    page["disabledExtensions"] = [*page.get("disabledExtensions", []), NEWS]
    return page
