"""Environments for systems that are compared with ours and that nothing here depends on."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "benchmarks"
#: Of the environment "ray", beside NumPy and torch.
RAY = "ray[tune]==2.60.0"


def python_with(name: str, *packages: str) -> Path | None:
    """The interpreter of an environment with these packages; made once, None if it cannot be.

    Versions are those of constraints.txt where it names a package.
    """
    folder = FOLDER / name
    python, stamp = folder / "bin" / "python", folder / "installed"
    wanted = "\n".join(packages)
    if stamp.exists() and stamp.read_text() == wanted:
        return python
    print(f"installing {', '.join(packages)} into {folder}: once, some minutes", flush=True)
    steps = [
        [sys.executable, "-m", "venv", "--clear", str(folder)],
        [str(python), "-m", "pip", "install", "-q", "-c", str(ROOT / "constraints.txt"), *packages],
    ]
    for step in steps:
        done = subprocess.run(step, capture_output=True, text=True)
        if done.returncode:
            print(f"it failed: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return None
    stamp.write_text(wanted)
    return python
