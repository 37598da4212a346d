"""The demo, as `make demo` runs it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.project import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.slow
def test_ctrl_c_in_the_demo_ends_it_with_a_sentence_and_its_exit_code(tmp_path):
    journal = tmp_path / "demo" / "runs" / "digits" / "journal.jsonl"
    with subprocess.Popen(
        [sys.executable, "-m", "examples.demo"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert "starting workers" in process.stdout.readline()
            wait_until(lambda: journal.exists() and b'"type":"visit"' in journal.read_bytes())
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    assert "resumes it" in errors
    assert "Traceback" not in errors
