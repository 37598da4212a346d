from __future__ import annotations

from pathlib import Path

import pytest

from cerebro import Steering
from cerebro.errors import UsageError
from cerebro.steering import AnswerState
from cerebro.storage import DirectoryStore
from cerebro.storage.inbox import Verb, pending
from tests.steered import (
    FAILED,
    FINISHED,
    PAUSED,
    PENDING,
    RUNNING,
    FakeDriver,
    answer,
    write_run,
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A run on which nobody works."""
    return write_run(tmp_path / "run")


@pytest.fixture
def steering(root):
    return Steering(root)


def sent(root):
    ((_, command),) = pending(DirectoryStore(root))
    return command


# What is sent


@pytest.mark.parametrize("name", [RUNNING, str(RUNNING), "t0001"])
def test_trials_are_named_by_number_or_id(root, steering, name):
    steering.stop(name)
    assert (sent(root).command, sent(root).trial) == (Verb.STOP, RUNNING)


def test_stopping_the_run_names_no_trial(root, steering):
    steering.stop()
    assert (sent(root).command, sent(root).trial) == (Verb.STOP, None)


@pytest.mark.parametrize("trial", [RUNNING, PENDING])
def test_what_is_not_through_can_be_paused(root, steering, trial):
    steering.pause(trial)
    assert (sent(root).command, sent(root).trial) == (Verb.PAUSE, trial)


def test_what_is_paused_can_go_on(root, steering):
    steering.unpause(PAUSED)
    assert (sent(root).command, sent(root).trial) == (Verb.UNPAUSE, PAUSED)


@pytest.mark.parametrize("is_warm", [True, False])
@pytest.mark.parametrize("trial", [FINISHED, RUNNING, PAUSED, FAILED])
def test_a_clone_tells_what_differs(root, steering, trial, is_warm):
    steering.clone(trial, {"lr": 0.5}, warm=is_warm)
    command = sent(root)
    assert (command.command, command.trial) == (Verb.CLONE, trial)
    assert (command.params, command.is_warm) == ({"lr": 0.5}, is_warm)


@pytest.mark.parametrize("trial", [None, FINISHED, RUNNING, PAUSED])
def test_trials_can_be_trained_longer(root, steering, trial):
    steering.extend(trial, epochs=5)
    command = sent(root)
    assert (command.command, command.trial, command.epochs) == (Verb.EXTEND, trial, 5)


def test_a_new_trial_gets_the_constants_of_the_space(root, steering):
    steering.add({"width": 7, "lr": 3.0})
    command = sent(root)
    assert command.command is Verb.ADD
    assert list(command.params.items()) == [("lr", 3.0), ("width", 7), ("kind", "mlp")]


def test_a_constant_can_be_given_another_value(root, steering):
    steering.add({"width": 7, "lr": 3.0, "kind": "cnn"})
    assert sent(root).params["kind"] == "cnn"


# What is refused before it is sent


@pytest.mark.parametrize(
    ("steer", "message"),
    [
        (lambda s: s.stop(9), r"unknown trial 9\. Known: t0000, t0001"),
        (lambda s: s.stop("t3"), r"unknown trial 't3'\. Known: t0000"),
        (lambda s: s.stop(FINISHED), "can be stopped, but t0000 is finished"),
        (lambda s: s.stop(FAILED), "can be stopped, but t0003 is failed"),
        (lambda s: s.pause(FINISHED), "can be paused, and once, but t0000 is finished"),
        (lambda s: s.pause(PAUSED), "can be paused, and once, but t0002 is paused"),
        (lambda s: s.unpause(RUNNING), "only a paused trial can go on, but t0001 is running"),
        (lambda s: s.unpause(FINISHED), "only a paused trial can go on, but t0000 is finished"),
        (lambda s: s.clone(0, {"lrr": 1}), r"unknown parameter 'lrr'.*Did you mean 'lr'\?"),
        (lambda s: s.clone(0, {"lr": float("nan")}), "a parameter's value must be"),
        (lambda s: s.clone(0, ["lr"]), "params must be a dict"),
        (lambda s: s.extend(FINISHED, epochs=2), "more than the 2 behind t0000, but got 2"),
        (lambda s: s.extend(RUNNING, epochs=2), "more than the 2 that t0001 is trained for"),
        (lambda s: s.extend(FINISHED, epochs=0), "must be a number from 1 on"),
        (lambda s: s.extend(FINISHED, epochs="3"), "must be a number from 1 on"),
        (lambda s: s.extend(FAILED, epochs=9), "can be trained longer, but t0003 is failed"),
        (lambda s: s.extend(epochs=2), "finished trials with fewer than 2 epochs"),
        (lambda s: s.add({"lr": 0.1}), r"for each of lr, width, kind, but width has none"),
        (lambda s: s.add({"lr": 0.1, "width": 3, "size": 1}), "unknown parameter 'size'"),
        (lambda s: s.stop(wait_s=-1), "`wait_s` must be a number of seconds"),
        (lambda s: s.stop(wait_s=float("nan")), "`wait_s` must be a number of seconds"),
    ],
)
def test_a_wrong_request_is_not_sent(root, steering, steer, message):
    with pytest.raises(UsageError, match=message):
        steer(steering)
    assert pending(DirectoryStore(root)) == []


def test_no_trial_is_trained_for_longer_than_the_goal_allows(tmp_path):
    goal = {"name": "goal", "metric": "train_loss", "mode": "min", "target": 0.1, "max_epochs": 4}
    root = write_run(tmp_path / "run", goal=goal)
    message = "`epochs <= goal.max_epochs` must hold, but got epochs=5 and max_epochs=4"
    for trial in (None, FINISHED):
        with pytest.raises(UsageError, match=message):
            Steering(root).extend(trial, epochs=5)
    Steering(root).extend(FINISHED, epochs=4)
    assert sent(root).epochs == 4


def test_a_finished_run_cannot_be_stopped(tmp_path):
    root = write_run(tmp_path / "run", is_finished=True)
    with pytest.raises(UsageError, match="only an unfinished run can be stopped"):
        Steering(root).stop()


def test_a_folder_without_a_run_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"must have a run\.json, but .* has none"):
        Steering(tmp_path)


# Answers


def test_without_a_driver_it_waits_for_the_next(root, steering):
    found = steering.stop(RUNNING)
    assert found.state is AnswerState.WAITING
    assert "nobody works on this run" in found.reason
    assert sent(root).id == found.id


def test_what_was_carried_out_is_applied(root, steering):
    with FakeDriver(root, lambda command: [answer(command)]):
        found = steering.stop(RUNNING, wait_s=60)
    assert (found.state, found.reason, found.trial) == (AnswerState.APPLIED, None, None)


def test_what_the_driver_refuses_has_its_reason(root, steering):
    with FakeDriver(root, lambda command: [answer(command, refused="too late")]):
        found = steering.clone(RUNNING, wait_s=60)
    assert (found.state, found.reason) == (AnswerState.REFUSED, "too late")


@pytest.mark.parametrize("noise", [[], [{"type": "trial", "trial": 6, "params": {}, "start": 0}]])
def test_a_new_trial_is_told_by_its_number(root, steering, noise):
    def reply(command):
        trial = {"type": "trial", "trial": 5, "params": {}, "start": 0, "command": command.id}
        return [answer(command), *noise, trial]

    with FakeDriver(root, reply):
        assert steering.add({"lr": 0.1, "width": 3}, wait_s=60).trial == 5


def test_a_driver_that_does_not_answer_in_time_has_it(root, steering):
    with FakeDriver(root, lambda command: []):
        found = steering.stop(RUNNING, wait_s=0)
    assert found.state is AnswerState.WAITING
    assert found.reason == "sent; the run will apply it at its next visit boundary"


def test_answers_to_others_are_not_ours(root, steering):
    def reply(command):
        return [{**answer(command), "id": "another"}]

    with FakeDriver(root, reply):
        assert steering.stop(RUNNING, wait_s=0.2).state is AnswerState.WAITING


def test_a_driver_that_ends_meanwhile_is_not_waited_for(root, steering):
    driver = FakeDriver(root, lambda command: driver.leave())
    with driver:
        found = steering.stop(RUNNING, wait_s=60)
    assert found.state is AnswerState.WAITING
    assert "nobody works on this run" in found.reason
