"""Commands of batch systems, played by small scripts."""

from __future__ import annotations

import shutil
from pathlib import Path


def write_command(folder: Path, name: str, body: str) -> None:
    """Make a command of a line or two of shell."""
    shell = shutil.which("sh", path="/bin:/usr/bin")
    (folder / name).write_text(f"#!{shell}\n{body}\n")
    (folder / name).chmod(0o755)
