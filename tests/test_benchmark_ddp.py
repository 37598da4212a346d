"""The benchmark of data parallelism: both sides learn the same, and send what the ring sends."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_ours_and_torchrun_learn_the_same_and_send_what_a_ring_sends():
    command = [sys.executable, "-m", "benchmarks.ddp", "--quick", "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["ok"]
    assert 0.0 <= found["middle_bytes_off"] < 0.5
