"""The `cerebro` command on runs with stacks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.integration.project import make_project


@pytest.fixture(scope="module")
def finished_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    project = make_project(tmp_path_factory.mktemp("stacked"))
    done = project.cerebro("run", "experiment.yaml", "stack=2", "space.lr=[0.1, 0.2, 0.3]")
    assert done.returncode == 0, done.stderr
    return project.folder, done.stderr


def test_a_run_says_how_its_trials_are_stacked(finished_folder):
    assert "3 trials in 2 stacks of 1 to 2\n" in finished_folder[1]


def test_status_and_results_show_them(finished):
    done = finished.cerebro("status", "runs/toy")
    assert "stacks  3 trials in 2 stacks of 1 to 2" in done.stdout
    assert "visits  18 of 18 training visits (100 %)" in done.stdout
    rows = json.loads(finished.cerebro("results", "runs/toy", "--json").stdout)
    assert sorted(row["trial"] for row in rows) == ["t0000", "t0001", "t0002"]


def test_a_plan_tells_what_was_decided_or_when_it_will_be(finished):
    options = ("plan", "experiment.yaml", "space.lr=[0.1, 0.2, 0.3]")
    done = finished.cerebro(*options, "stack=2")
    assert "stacks       3 trials in 2 stacks of 1 to 2" in done.stdout
    assert "ms a training visit in the run of this name" in done.stdout
    done = finished.cerebro(*options, "stack=8", "name=other")
    assert "8 trials each at most: put together when the run begins" in done.stdout
    done = finished.cerebro(*options, "stack=false")
    assert "stacks       none: every trial is trained alone" in done.stdout
    assert "differs in stack: `cerebro run` refuses" in done.stdout


def test_doctor_verifies_checkpoints_of_stacks(finished):
    done = finished.cerebro("doctor", "runs/toy")
    assert done.returncode == 0
    assert "are intact" in done.stdout
    files = sorted(finished.run_directory.glob("stacks/*/checkpoints/*.safetensors"))
    files[0].write_bytes(files[0].read_bytes()[:-1])
    done = finished.cerebro("doctor", "runs/toy")
    assert done.returncode == 1
    assert f"stacks/s0000/checkpoints/{files[0].name}" in done.stdout


def test_a_wrong_setting_names_the_line(finished):
    finished.edit("experiment.yaml", "epochs: 2", "epochs: 2\nstack: often")
    done = finished.cerebro("run", "experiment.yaml")
    assert done.returncode == 2
    assert "experiment.yaml:6" in done.stderr
    assert "stack must be auto, probe, false or a number of at least 1" in done.stderr
