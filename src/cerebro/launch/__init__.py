"""The services of a workspace: JupyterLab, TensorBoard and the pages of its runs."""

from __future__ import annotations

from cerebro.launch.launcher import Endpoint, Launcher, Overview, open_launcher

__all__ = ["Endpoint", "Launcher", "Overview", "open_launcher"]
