"""A wrong request is told in one paragraph, with exit code 2, and changes nothing on disk."""

from __future__ import annotations

import shutil
import signal
from pathlib import Path

import numpy as np
import pytest

import cerebro
from tests.integration.project import Project, make_project, wait_until


@pytest.fixture(scope="module")
def stopped_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a run that has trained a part of its trials."""
    project = make_project(tmp_path_factory.mktemp("stopped"))
    held = project.hold(1)
    with project.start("run", "experiment.yaml") as process:
        try:
            wait_until(project.has_visits)
            process.send_signal(signal.SIGINT)
            held.unlink()
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130
    return project.folder


@pytest.fixture
def stopped(stopped_folder: Path, tmp_path: Path) -> Project:
    shutil.copytree(stopped_folder, tmp_path, dirs_exist_ok=True)
    return Project(tmp_path)


def refuse(project: Project, *arguments: str) -> str:
    """Run a command that must be refused; what it says."""
    before = project.content()
    done = project.cerebro(*arguments)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1, "one paragraph"
    assert "Traceback" not in done.stderr
    assert project.content() == before
    return done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (
            "epochs: 2",
            "epoch: 2",
            "experiment.yaml:5: unknown key 'epoch'. ",
        ),
        (
            "workers: 2",
            "backend: locl",
            "experiment.yaml:4: unknown backend 'locl'. Known: inline, local, ray, spark. "
            "Did you mean 'local'?",
        ),
        (
            "epochs: 2",
            "epochs: two",
            "experiment.yaml:5: `epochs` must be an integer, but got 'two' (a string).",
        ),
        (
            "epochs: 2",
            "epochs: 2\nepochs: 3",
            "experiment.yaml:6: the key 'epochs' is already on line 5.",
        ),
        ("mode: max", "mode: most", "experiment.yaml:8: `mode` must be"),
        ("data: data", "data: date", "experiment.yaml:3: the dataset directory "),
        ("task: tasks:Toy", "task: Toy", "experiment.yaml:2: a class is named `module:Class`"),
        ("task: tasks:Toy", "task: task.py:Toy", "experiment.yaml:2: the task 'task.py:Toy' needs"),
        ("  lr: [0.1, 0.01]", "  lr: [0.1", "experiment.yaml:"),
        ("  lr: [0.1, 0.01]", "  lr: {uniform: [2, 1]}", "experiment.yaml:10: `space.lr`"),
        ("batch_size: 32\n", "", "experiment.yaml: `batch_size` or `global_batch_size` must"),
    ],
    ids=lambda value: str(value)[:20],
)
def test_a_wrong_experiment_file_is_refused_with_its_line(project, old, new, message):
    project.edit("experiment.yaml", old, new)
    assert message in refuse(project, "run", "experiment.yaml")


def test_plan_refuses_what_run_refuses(project):
    project.edit("experiment.yaml", "epochs: 2", "epoch: 2")
    assert "experiment.yaml:5: unknown key 'epoch'." in refuse(project, "plan", "experiment.yaml")


@pytest.mark.parametrize("command", ["run", "plan"])
def test_a_missing_experiment_file_is_refused(project, command):
    said = refuse(project, command, "experimnt.yaml")
    assert said == "error: there is no experiment file 'experimnt.yaml'.\n"


@pytest.mark.parametrize("command", ["status", "results", "doctor"])
def test_a_missing_run_directory_is_refused(project, command):
    assert "but runs/toy has none" in refuse(project, command, "runs/toy")


def test_a_wrong_override_is_refused(project):
    said = refuse(project, "run", "experiment.yaml", "space.learning_rate=1")
    assert "override 'space.learning_rate=1': unknown parameter 'learning_rate'" in said


def test_a_folder_without_dataset_is_refused(project):
    (project.folder / "data" / "dataset.json").unlink()
    assert "it has no dataset.json" in refuse(project, "run", "experiment.yaml")


def test_a_missing_module_is_refused(project):
    project.edit("experiment.yaml", "tasks:Toy", "taks:Toy")
    said = refuse(project, "run", "experiment.yaml")
    assert "experiment.yaml:2: the task 'taks:Toy' cannot be imported" in said
    assert "No module named 'taks'" in said


def test_a_missing_class_is_refused(project):
    project.edit("experiment.yaml", "tasks:Toy", "tasks:Toys")
    said = refuse(project, "run", "experiment.yaml")
    assert "experiment.yaml:2: 'tasks:Toys' must name a subclass of cerebro.Task" in said


def test_a_class_that_is_no_task_is_refused(project):
    project.edit("experiment.yaml", "tasks:Toy", "pathlib:Path")
    assert "must name a subclass of cerebro.Task" in refuse(project, "run", "experiment.yaml")


def test_a_syntax_error_in_the_task_is_told_with_its_line(project):
    project.edit("tasks.py", "version = 1", "version = = 1")
    said = refuse(project, "run", "experiment.yaml")
    assert "SyntaxError" in said
    assert "tasks.py, line 5" in said


def test_an_error_while_importing_the_task_is_told_with_its_line(project):
    project.edit("tasks.py", "version = 1", "version = one")
    said = refuse(project, "run", "experiment.yaml")
    assert "NameError: name 'one' is not defined" in said
    assert "tasks.py, line 5" in said


def test_a_param_that_is_not_in_the_space_is_refused(project):
    project.edit("experiment.yaml", "lr:", "rate:")
    said = refuse(project, "run", "experiment.yaml")
    assert "experiment.yaml:9: the task asks for params['lr'], but the trial has: rate." in said


def test_a_metric_that_does_not_exist_lists_those_that_do(project):
    project.edit("experiment.yaml", "val_accuracy", "val_acuracy")
    said = refuse(project, "run", "experiment.yaml")
    assert "experiment.yaml:7: " in said
    assert "'val_acuracy'" in said
    assert "train_loss, val_loss, val_accuracy" in said


def test_a_stopper_by_a_metric_that_does_not_exist_is_told_with_its_line(project):
    stopper = "stopper:\n  name: patience\n  metric: val_acuracy\n  mode: max\n"
    project.edit("experiment.yaml", "space:", f"{stopper}space:")
    said = refuse(project, "run", "experiment.yaml")
    assert "experiment.yaml:11: the metric of stopper 'patience' must be one that" in said
    assert "train_loss, val_loss, val_accuracy" in said


def test_a_validation_metric_without_validation_data_is_refused(project):
    x = np.zeros((12, 2))
    cerebro.data.from_arrays(
        project.folder / "data", train={"x": x, "y": x[:, 0]}, shards=2, seed=0
    )
    assert "needs a validation split" in refuse(project, "run", "experiment.yaml")


def test_a_wrong_metric_with_fresh_keeps_the_old_run_in_place(stopped):
    stopped.edit("experiment.yaml", "val_accuracy", "val_acuracy")
    assert "val_accuracy" in refuse(stopped, "run", "experiment.yaml", "--fresh")


def test_a_second_driver_on_a_run_is_refused(project):
    held = project.hold(1)
    with project.start("run", "experiment.yaml") as process:
        try:
            wait_until(project.has_visits)
            done = project.cerebro("run", "experiment.yaml")
            process.send_signal(signal.SIGINT)
            held.unlink()
            process.communicate(timeout=60)
        finally:
            process.kill()
    assert done.returncode == 2
    assert f"pid {process.pid}" in done.stderr
    assert done.stderr.count("\n") == 1
    # The first one was not disturbed.
    assert process.returncode == 130


@pytest.mark.parametrize(
    ("override", "field"),
    [("space.lr=[0.1, 0.02]", "space"), ("seed=1", "seed"), ("epochs=3", "epochs")],
)
def test_a_resume_with_something_changed_is_refused(stopped, override, field):
    said = refuse(stopped, "run", "experiment.yaml", override)
    assert f" {field} was " in said
    assert "--fresh" in said
    assert "--force" in said


def test_a_resume_with_changed_data_is_refused(stopped):
    x = np.ones((240, 5))
    cerebro.data.from_arrays(
        stopped.folder / "data",
        train={"x": x, "y": np.zeros(240, np.int64)},
        shards=3,
        validation=0.2,
        seed=0,
    )
    assert "data_digest was " in refuse(stopped, "run", "experiment.yaml")


def test_a_resume_with_a_broken_task_changes_nothing(stopped):
    stopped.edit("tasks.py", "class Toy(", "class Other(")
    assert "experiment.yaml:2: 'tasks:Toy' must name" in refuse(stopped, "run", "experiment.yaml")


def test_a_resume_with_changed_task_code_warns_and_goes_on(stopped):
    stopped.edit("tasks.py", "version = 1", "version = 2")
    done = stopped.cerebro("run", "experiment.yaml", "-q")
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("warning: the code or the arguments of tasks:Toy have changed")


def test_force_resumes_and_is_recorded(stopped):
    done = stopped.cerebro("run", "experiment.yaml", "seed=1", "--force", "-q")
    assert done.returncode == 0, done.stderr
    assert b'"forced"' in (stopped.run_directory / "journal.jsonl").read_bytes()
