"""Wrong requests on the command line, and files that are not what they should be."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import cerebro
from tests.integration.project import TASKS, environment, wait_until


@pytest.mark.parametrize("command", ["status", "results", "doctor"])
def test_a_file_is_no_run_directory(project, command):
    said = project.refuse(command, "experiment.yaml")
    assert (
        said == "error: a run is a directory, but experiment.yaml is a file: give <store>/<name>.\n"
    )


@pytest.mark.parametrize("command", ["status", "results", "doctor"])
def test_an_empty_directory_is_no_run(project, command):
    (project.folder / "empty").mkdir()
    assert "must have a run.json, but empty has none." in project.refuse(command, "empty")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_directory_is_no_experiment_file(project, command):
    assert "must be a regular file, but 'data' is not." in project.refuse(command, "data")


@pytest.mark.parametrize("command", ["run", "plan"])
@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("epochs", "an override is written key=value or key.sub=value."),
        ("epochs=two", "`epochs` must be an integer, but got 'two' (a string)."),
        ("epoch=2", "unknown key 'epoch'."),
        (
            "backend=locl",
            "unknown backend 'locl'. Known: inline, local, ray, spark. Did you mean 'local'?",
        ),
        ("store=tasks.py", "the store must be a directory, but "),
        ("data=nowhere", "the dataset directory "),
        ("data=.", "there is no dataset at "),
        ("name=../toy", "`name`: a run's name must start with a letter or digit"),
        ("search=bayes", "unknown search 'bayes'. Known: grid, nsga2, random, sobol, tpe."),
        ("stopper=ahsa", "unknown stopper 'ahsa'."),
        ("budget=soon", "`budget`: a time must be a positive number of seconds or text such as"),
        ("folds=2", "folds are cut by shard: their number must be at least 2 and divide the 3"),
    ],
)
def test_a_wrong_override_is_named(project, command, override, message):
    said = project.refuse(command, "experiment.yaml", override)
    assert said.startswith(f"error: override {override!r}: ")
    assert message in said


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_validation_metric_without_validation_data_is_told_with_its_line(project, command):
    cerebro.data.from_arrays(
        project.folder / "data", train={"x": np.zeros((12, 2))}, shards=2, seed=0
    )
    said = project.refuse(command, "experiment.yaml")
    assert said.startswith(
        "error: experiment.yaml:7: metric 'val_accuracy' needs a validation split"
    )


def test_an_empty_dataset_directory_is_told_with_its_line(project):
    project.edit("experiment.yaml", "data: data", "data: .")
    said = project.refuse("run", "experiment.yaml")
    assert said.startswith("error: experiment.yaml:3: there is no dataset at ")


def test_a_batch_size_that_is_none_is_told_with_its_line(project):
    project.edit("experiment.yaml", "batch_size: 32\n", "")
    project.edit("experiment.yaml", "space:", "space:\n  batch_size: [8, 0]")
    said = project.refuse("run", "experiment.yaml")
    assert said.startswith("error: experiment.yaml:9: batch_size must be an integer of at least 1")


def test_a_device_that_is_not_there_is_told_with_its_line(project):
    project.edit("tasks.py", "from cerebro.testing.toy import ToyTask", "import cerebro")
    project.edit("tasks.py", "ToyTask", "cerebro.Task")
    project.edit("experiment.yaml", "workers: 2", "device: tpu")
    said = project.refuse("run", "experiment.yaml")
    assert said.startswith("error: experiment.yaml:4: device must name a device of this machine")


def test_a_second_driver_is_refused_and_fresh_moves_nothing(project):
    with project.running() as process:
        again = project.cerebro("run", "experiment.yaml", "epochs=2000")
        fresh = project.cerebro("run", "experiment.yaml", "epochs=2000", "--fresh")
    for done in (again, fresh):
        assert done.returncode == 2
        assert f"pid {process.pid}" in done.stderr
        assert done.stderr.count("\n") == 1
    assert process.returncode == 130
    assert [path.name for path in (project.folder / "runs").iterdir()] == ["toy"]


def test_json_and_csv_at_once_are_refused(project):
    said = project.refuse("results", "runs/toy", "--json", "--csv")
    assert said == "error: the result is written once: give --json or --csv, not both.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["staus"], "No such command 'staus'. Did you mean 'status'"),
        (["run", "experiment.yaml", "--frsh"], "No such option: --frsh"),
        (["results"], "Missing argument 'RUN'."),
    ],
    ids=" ".join,
)
def test_a_misspelt_command_line_is_refused(project, arguments, message):
    done = project.cerebro(*arguments)
    assert done.returncode == 2
    assert message in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_output_that_cannot_be_written_is_told_without_a_traceback(project):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cerebro", "run", "experiment.yaml", "epochs=1", "-q"],
            cwd=project.folder,
            env=environment(),
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    assert done.returncode == 1
    assert done.stderr == "error: No space left on device.\n"
    assert "finished" in project.cerebro("status", "runs/toy").stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
@pytest.mark.parametrize(
    ("arguments", "code"), [(("run", "missing.yaml"), 2), (("status", "."), 2)]
)
def test_an_error_that_nobody_can_read_has_its_exit_code(project, arguments, code):
    """As where the log of a batch job is on the disk that has filled up."""
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "cerebro", *arguments],
            cwd=project.folder,
            env=environment(),
            stderr=full,
            check=False,
        )
    assert done.returncode == code


@pytest.mark.parametrize("closed", ["2>&-", "0<&- 2>&-", "1>&-", "0<&- 1>&- 2>&-"])
def test_a_command_may_have_no_output(project, closed):
    """What it opens must not be taken for it."""
    command = ["run", "experiment.yaml", "epochs=1"]
    done = subprocess.run(
        ["sh", "-c", f'exec "$@" {closed}', "sh", sys.executable, "-m", "cerebro", *command],
        cwd=project.folder,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert ("finished" in done.stdout) == ("1>" not in closed)
    assert project.cerebro("doctor", "runs/toy").returncode == 0


#: The driver has read the module before it takes the lock; a worker reads it afterwards.
NEVER_READY = """
import pathlib
import threading

folder = pathlib.Path(__file__).parent
if (folder / "runs" / "toy" / "lock").exists():
    (folder / "worker-waits").touch()
    threading.Event().wait()
"""


def test_a_stop_during_start_up_leaves_no_run(project):
    project.write("tasks.py", TASKS + NEVER_READY)
    with project.start("run", "experiment.yaml") as process:
        try:
            wait_until((project.folder / "worker-waits").exists)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 75, errors
    assert "Traceback" not in errors
    assert not (project.folder / "runs").exists()
