"""The `cerebro` command. Nothing heavy is imported before a command needs it."""

from __future__ import annotations

from cerebro.cli.app import main

__all__ = ["main"]
