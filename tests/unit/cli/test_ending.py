"""How commands end, wherever their output goes."""

from __future__ import annotations

import subprocess
import sys

import pytest

CHILD = "import os; os.fstat(0); os.fstat(1); os.fstat(2)"
COMMAND = f"""
import os, subprocess, sys
from cerebro.cli.ending import have_streams

have_streams()
print("said"), print("said", file=sys.stderr)
with open(os.devnull) as other:
    assert other.fileno() > 2
sys.exit(subprocess.run([sys.executable, "-c", {CHILD!r}]).returncode)
"""


@pytest.mark.parametrize("closed", ["2>&-", "1>&- 2>&-", "0<&- 1>&- 2>&-"])
def test_output_that_is_closed_goes_nowhere_that_of_processes_too(closed: str) -> None:
    command = [sys.executable, "-c", COMMAND]
    done = subprocess.run(["sh", "-c", f'exec "$@" {closed}', "sh", *command], check=False)
    assert done.returncode == 0
