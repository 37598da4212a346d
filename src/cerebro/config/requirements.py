"""Packages that an experiment needs, installed where its workers look for them."""

from __future__ import annotations

import os
import subprocess
import sys

from cerebro.errors import MissingDependencyError, UsageError

_SHOWN_LINES = 5


def install_requirements(file: str | os.PathLike[str] | None) -> None:
    """Install the packages of a requirements file, if there is one, into this environment.

    Workers on this machine use the same. Packages that are there already are left alone.

    Raises:
        UsageError: There is no such file.
        MissingDependencyError: pip could not install all of them; nothing else is started.
    """
    if file is None:
        return
    path = os.path.abspath(os.path.expanduser(os.fspath(file)))
    if not os.path.isfile(path):
        raise UsageError(f"requirements must name a file, but there is no {path}.")
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # Paths in the file are relative to it.
    done = subprocess.run(
        [*command, "--no-input", "-r", path],
        cwd=os.path.dirname(path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    if done.returncode:
        said = "\n".join(done.stderr.strip().splitlines()[-_SHOWN_LINES:])
        raise MissingDependencyError(
            f"the packages of {path} must be installed, but pip could not:\n{said}"
        )
