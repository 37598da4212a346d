"""What the documentation and the examples show runs, on a standalone cluster and without."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cluster.sparks import ENVIRONMENT, ROOT, SETTINGS, Standalone
from tests.test_docs import script_of

pytestmark = [pytest.mark.spark, pytest.mark.timeout(900)]


def run(arguments: list[str], folder: Path, master: str) -> str:
    """What a program printed that runs with Spark on this master."""
    settings = [f"--conf {name}={value}" for name, value in SETTINGS.items()]
    submit = " ".join(["--master", master, *settings, "pyspark-shell"])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", *arguments],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT, "PYSPARK_SUBMIT_ARGS": submit},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
    return done.stdout


@pytest.fixture
def cluster(tmp_path):
    folder = tmp_path / "cluster"
    folder.mkdir()
    found = Standalone(folder, workers=2)
    try:
        found.start()
        yield found
    finally:
        found.stop()


def test_the_page_on_spark_runs_on_a_standalone_cluster(cluster, tmp_path):
    page = (ROOT / "docs" / "spark.md").read_text(encoding="utf-8")
    (tmp_path / "page.py").write_text(script_of(page), encoding="utf-8")
    told = run(["page.py"], tmp_path, cluster.url)
    assert "label_predicted" in told
    assert (tmp_path / "best.keras").exists()
    assert (tmp_path / "best.spark" / "metadata").is_dir()
    assert list((tmp_path / "logs").glob("tpe-*/t0003/events*"))


def test_the_getting_started_example_finds_a_model(tmp_path):
    arguments = ["-m", "examples.spark_getting_started", "--num-models", "3", "--epochs", "2"]
    told = run(arguments, tmp_path, "local[2]")
    assert "models: 3 histories: 3" in told
    assert (tmp_path / "demo/spark/best.keras").exists()


def test_the_rossmann_example_writes_a_submission(tmp_path):
    arguments = ["-m", "examples.spark_rossmann", "--num-models", "2", "--epochs", "1"]
    told = run(arguments, tmp_path, "local[2]")
    assert "best exp_rmspe: " in told
    lines = (tmp_path / "demo/rossmann/submission.csv").read_text().splitlines()
    assert lines[0] == "Id,Sales"
    assert len(lines) == 1 + 14 * 12
    assert [int(line.split(",")[0]) for line in lines[1:]] == list(range(1, 14 * 12 + 1))
