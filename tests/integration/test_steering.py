"""Steering a run that goes on, as people do: from a shell, from Python, with a file."""

from __future__ import annotations

import json
import os
import signal
from typing import Any

import pytest

from cerebro import Result, Steering
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from tests.integration.project import DEADLINE_S, Project, wait_until

pytestmark = pytest.mark.slow

Record = dict[str, Any]


@pytest.fixture
def finished(project: Project) -> Project:
    """A project whose run is through: two trials of two epochs."""
    done = project.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    return project


def records(project: Project, kind: str) -> list[Record]:
    found: list[Record] = read(DirectoryStore(project.run_directory)).records
    return [record for record in found if record["type"] == kind]


def steer(project: Project, *arguments: str) -> str:
    """Steer the run; the line that says what was done."""
    verb, *rest = arguments
    done = project.cerebro(verb, str(project.run_directory), *rest, "--wait", str(DEADLINE_S))
    assert done.returncode == 0, done.stderr
    return done.stdout.removesuffix("\n")


def statuses(project: Project) -> list[str]:
    return [str(trial.status) for trial in Result.open(project.run_directory).trials]


def visits_of(project: Project, trial: int) -> int:
    return sum(record["trial"] == trial for record in records(project, "visit"))


def wait_for_visits(project: Project, trial: int, more: int = 3) -> None:
    """Until a trial has so many more than now."""
    before = visits_of(project, trial)
    wait_until(lambda: visits_of(project, trial) >= before + more)


def assert_rests(project: Project, trial: int, other: int) -> None:
    """Once what was under way is done, a trial has no more visits while another one has."""
    before = visits_of(project, trial)
    wait_for_visits(project, other, more=12)
    # One may have been in flight, and one done but not saved yet.
    assert visits_of(project, trial) <= before + 2


def drop(project: Project, name: str, text: str) -> None:
    """Put a file into the inbox by hand; not one that was touched just now."""
    path = project.run_directory / "inbox" / name
    path.parent.mkdir(exist_ok=True)
    path.with_suffix(".new").write_text(text)
    os.utime(path.with_suffix(".new"), (1, 1))
    path.with_suffix(".new").rename(path)


# Stop


def test_one_trial_is_stopped_and_the_others_go_on(project):
    with project.running():
        assert steer(project, "stop", "t0000") == "stopped t0000"
        assert_rests(project, 0, other=1)
        assert statuses(project) == ["stopped", "running"]


def test_a_run_that_is_stopped_is_over(project):
    with project.running() as process:
        assert steer(project, "stop") == "stopped the run"
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
    assert statuses(project) == ["stopped", "stopped"]
    assert Result.open(project.run_directory).is_finished
    again = project.cerebro("run", "experiment.yaml", "epochs=2000")
    assert again.returncode == 0, again.stderr
    assert statuses(project) == ["stopped", "stopped"]


# Pause


def test_a_paused_trial_waits_until_it_goes_on(project):
    with project.running():
        assert steer(project, "pause", "0") == "paused t0000"
        assert_rests(project, 0, other=1)
        assert statuses(project) == ["paused", "running"]
        assert steer(project, "unpause", "0") == "unpaused t0000"
        wait_for_visits(project, 0)
        assert statuses(project) == ["running", "running"]


def test_a_run_whose_trials_are_all_paused_ends_until_one_goes_on(project):
    with project.running() as process:
        steer(project, "pause", "0")
        steer(project, "pause", "1")
        _, said = process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 0
        assert "2 trials are paused (t0000, t0001)" in said
    assert not Result.open(project.run_directory).is_finished
    assert steer(project, "unpause", "1").startswith("nobody works on this run")
    with project.start("run", "experiment.yaml", "epochs=2000") as process:
        try:
            wait_for_visits(project, 1)
            assert statuses(project) == ["paused", "running"]
            assert steer(project, "stop") == "stopped the run"
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert statuses(project) == ["stopped", "stopped"]


# New trials


def test_a_warm_clone_goes_on_from_where_its_parent_was(project):
    with project.running():
        wait_until(lambda: len(Result.open(project.run_directory).history(0)) >= 2)
        assert steer(project, "clone", "0", "lr=0.5") == "cloned t0000 as t0002"
        wait_for_visits(project, 2)
    clone = Result.open(project.run_directory).trials[2]
    assert clone.params["lr"] == 0.5
    first = next(each for each in records(project, "visit") if each["trial"] == 2)
    assert (first["epoch"], first["step"]) > (0, 0)


def test_a_cold_clone_begins_anew(project):
    with project.running():
        assert steer(project, "clone", "0", "lr=0.5", "--cold") == "cloned t0000 as t0002"
        wait_for_visits(project, 2)
    first = next(each for each in records(project, "visit") if each["trial"] == 2)
    assert (first["epoch"], first["step"]) == (0, 0)


def test_a_trial_is_added(project):
    with project.running():
        assert steer(project, "add", "lr=0.3") == "added t0002"
    params = Result.open(project.run_directory).trials[2].params
    assert params == {"visit_s": 0.05, "lr": 0.3}


def test_two_people_who_steer_at_once_get_a_trial_each(project):
    with project.running():
        run = str(project.run_directory)
        adding = [project.start("add", run, f"lr={lr}", "--wait", "60") for lr in (0.3, 0.4)]
        told = [process.communicate(timeout=DEADLINE_S)[0] for process in adding]
    assert sorted(told) == ["added t0002\n", "added t0003\n"]
    lrs = [trial.params["lr"] for trial in Result.open(project.run_directory).trials]
    assert sorted(lrs) == [0.01, 0.1, 0.3, 0.4]
    assert project.cerebro("doctor", run).returncode == 0


def test_steering_from_python(project):
    with project.running():
        answer = Steering(project.run_directory).clone(1, {"lr": 0.2}, wait_s=DEADLINE_S)
        assert (answer.state, answer.trial) == ("applied", 2)
        assert records(project, "command")[0]["id"] == answer.id


# Longer


def test_a_finished_trial_is_trained_longer_as_if_it_had_been_from_the_start(finished, tmp_path):
    said = finished.cerebro("extend", "runs/toy", "0", "epochs=4")
    assert said.stdout.startswith("nobody works on this run")
    done = finished.cerebro("run", "experiment.yaml")
    assert done.returncode == 0, done.stderr
    longer = Result.open(finished.run_directory)
    assert [len(longer.history(n)) for n in (0, 1)] == [4, 2]

    other = finished.cerebro("run", "experiment.yaml", "name=whole", "epochs=4")
    assert other.returncode == 0, other.stderr
    whole = Result.open(finished.folder / "runs" / "whole")
    assert longer.history(0) == whole.history(0)
    assert longer.states(0)[-1] == whole.states(0)[-1]


def test_all_finished_trials_are_trained_longer(finished):
    finished.cerebro("extend", "runs/toy", "epochs=3")
    assert finished.cerebro("run", "experiment.yaml").returncode == 0
    longer = Result.open(finished.run_directory)
    assert [len(longer.history(n)) for n in (0, 1)] == [3, 3]


def test_a_trial_can_be_added_to_a_finished_run(finished):
    finished.cerebro("add", "runs/toy", "lr=0.3")
    assert finished.cerebro("run", "experiment.yaml").returncode == 0
    result = Result.open(finished.run_directory)
    assert [trial.params["lr"] for trial in result.trials] == [0.1, 0.01, 0.3]
    assert statuses(finished) == ["finished"] * 3


# Files by hand, and what is refused


def test_a_file_dropped_by_hand_is_a_command(project):
    with project.running():
        drop(project, "stop.json", json.dumps({"command": "stop", "trial": 0}))
        wait_until(lambda: statuses(project)[0] == "stopped")
    assert not (project.run_directory / "inbox" / "stop.json").exists()


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "must be JSON"),
        ('{"command": "stop", "trial": 99}', "99"),
        ('{"command": "unpause", "trial": 0}', "running"),
        ('{"command": "add", "params": {"nonsense": 1}}', "nonsense"),
        ('{"command": "extend", "trial": 0, "epochs": 1}', "epochs"),
    ],
)
def test_what_cannot_be_done_is_refused_in_the_journal_and_the_run_goes_on(project, text, reason):
    with project.running() as process:
        wait_until(lambda: len(Result.open(project.run_directory).history(0)) >= 1)
        drop(project, "bad.json", text)
        wait_until(lambda: bool(records(project, "command")))
        wait_for_visits(project, 0)
        assert process.poll() is None
    (refused,) = records(project, "command")
    assert reason in refused["refused"]
    assert not (project.run_directory / "inbox" / "bad.json").exists()


# Kills


def test_commands_survive_a_kill_and_are_carried_out_once(project):
    project.edit("experiment.yaml", "space:", "space:\n  visit_s: 0.05")
    with project.start("run", "experiment.yaml", "epochs=2000") as process:
        wait_until(project.has_visits)
        assert steer(project, "stop", "0") == "stopped t0000"
        assert steer(project, "add", "lr=0.3") == "added t0002"
        process.kill()
        process.communicate()
    # Nobody works on it now: this one waits.
    waiting = project.cerebro("stop", str(project.run_directory))
    assert waiting.stdout.startswith("nobody works on this run")
    done = project.cerebro("run", "experiment.yaml", "epochs=2000")
    assert done.returncode == 0, done.stderr
    assert statuses(project) == ["stopped"] * 3
    assert [each["command"] for each in records(project, "command")] == ["stop", "add", "stop"]
    assert project.cerebro("doctor", str(project.run_directory)).returncode == 0


def test_an_interrupted_run_resumes_with_what_was_added(project):
    with project.running() as process:
        assert steer(project, "add", "lr=0.3") == "added t0002"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=DEADLINE_S)
        assert process.returncode == 130
    with project.start("run", "experiment.yaml", "epochs=2000") as process:
        try:
            wait_for_visits(project, 2)
            assert steer(project, "stop") == "stopped the run"
            process.communicate(timeout=DEADLINE_S)
        finally:
            process.kill()
    assert len(records(project, "trial")) == 3
