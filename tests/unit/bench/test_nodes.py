"""The processes of a setting, and how they end."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from cerebro.bench.nodes import Nodes


@pytest.mark.parametrize("codes", [(0,), (3, 0)], ids=["one", "two"])
def test_processes_may_end_while_somebody_is_told(tmp_path: Path, codes: tuple[int, ...]) -> None:
    commands = [
        [sys.executable, "-c", f"import sys; sys.stdin.read(); sys.exit({code})"] for code in codes
    ]
    logs = [tmp_path / f"{number}.log" for number in range(len(codes))]
    with Nodes(commands, logs) as nodes:

        def told() -> None:
            for process in nodes._processes:
                if process.stdin is not None:
                    process.stdin.close()
                # Over, but its code is still to be asked for.
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)

        assert nodes.wait(told) == list(codes)
