from __future__ import annotations

from pathlib import Path

import pytest
from typer.testing import CliRunner

from cerebro.cli.app import app
from cerebro.storage import DirectoryStore
from cerebro.storage.inbox import pending
from cerebro.storage.lock import RunLock
from tests.steered import FakeDriver, answer, write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return write_run(tmp_path / "run")


def cerebro(*arguments):
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def carry_out(command):
    """What a driver writes that does everything it is asked."""
    trial = {"type": "trial", "trial": 5, "params": {}, "start": 0, "command": command.id}
    return [answer(command), *([trial] if command.command in ("clone", "add") else [])]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["stop", "RUN"], "stopped the run"),
        (["stop", "RUN", "t0001"], "stopped t0001"),
        (["stop", "RUN", "1"], "stopped t0001"),
        (["pause", "RUN", "1"], "paused t0001"),
        (["unpause", "RUN", "2"], "unpaused t0002"),
        (["clone", "RUN", "1", "lr=1e-3", "width=9"], "cloned t0001 as t0005"),
        (["clone", "RUN", "1", "--cold"], "cloned t0001 as t0005"),
        (["extend", "RUN", "epochs=20"], "extended all finished trials to 20 epochs"),
        (["extend", "RUN", "0", "epochs=20"], "extended t0000 to 20 epochs"),
        (["extend", "RUN", "epochs=20", "t0000"], "extended t0000 to 20 epochs"),
        (["add", "RUN", "lr=0.1", "width=[1, 2]"], "added t0005"),
    ],
)
def test_what_was_done_is_one_line(root, arguments, line):
    with FakeDriver(root, carry_out):
        done = cerebro(*[root if word == "RUN" else word for word in arguments], "--wait", "60")
    assert (done.exit_code, done.stdout, done.stderr) == (0, f"{line}\n", "")


def test_values_are_read_as_yaml(root):
    cerebro("clone", root, "1", "lr=1e-3", "width=[64, 32]", "kind=no", "--cold")
    ((_, command),) = pending(DirectoryStore(root))
    assert command.params == {"lr": 0.001, "width": [64, 32], "kind": "no"}
    assert not command.is_warm


def test_a_refusal_is_an_error_with_its_reason(root):
    with FakeDriver(root, lambda command: [answer(command, refused="too\x1b late")]):
        done = cerebro("stop", root, "1", "--wait", "60")
    assert done.exit_code == 2
    assert (done.stdout, done.stderr) == ("", "error: the run refused it: too? late\n")


def test_a_driver_that_does_not_answer_in_time_is_told_of(root):
    with FakeDriver(root, lambda command: []):
        done = cerebro("stop", root, "1", "--wait", "0")
    assert done.exit_code == 0
    assert done.stdout == "sent; the run will apply it at its next visit boundary\n"


def test_without_a_driver_the_command_waits(root):
    done = cerebro("stop", root, "1")
    assert done.exit_code == 0
    assert done.stdout.startswith("nobody works on this run: it will be applied when `cerebro run`")
    assert len(pending(DirectoryStore(root))) == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["stop", "RUN", "t0000"], "only an unfinished trial can be stopped, but t0000 is"),
        (["stop", "RUN", "t0099"], "unknown trial 't0099'. Known: t0000"),
        (["clone", "RUN", "1", "lr"], "a param is written name=value, but got 'lr'."),
        (["clone", "RUN", "1", "=3"], "a param is written name=value, but got '=3'."),
        (["clone", "RUN", "1", "lr=1", "lr=2"], "a param must be given once, but 'lr'"),
        (["clone", "RUN", "1", "lr=[1"], "param 'lr=[1': not valid YAML"),
        (["clone", "RUN", "1", "lr=.nan"], "a parameter's value must be None, a bool, a finite"),
        (["clone", "RUN", "1", "rate=1"], "unknown parameter 'rate'. Known: lr, width, kind."),
        (["extend", "RUN", "0"], "extend is written `cerebro extend RUN [TRIAL] epochs=N`"),
        (["extend", "RUN", "0", "1", "epochs=9"], "extend is written `cerebro extend RUN"),
        (["extend", "RUN", "epochs=many"], "extend is written `cerebro extend RUN"),
        (["extend", "RUN", "epochs=9", "lr=1"], "extend is written `cerebro extend RUN"),
        (["add", "RUN"], "a new trial needs a value for each of lr, width, kind"),
        (["stop", "EMPTY"], "a run's directory must have a run.json"),
    ],
)
def test_a_wrong_request_is_one_line_and_not_sent(root, tmp_path, arguments, message):
    places = {"RUN": root, "EMPTY": tmp_path}
    done = cerebro(*[places.get(word, word) for word in arguments])
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert message in done.stderr
    assert done.stderr.count("\n") == 1
    assert pending(DirectoryStore(root)) == []


def test_a_run_that_is_starting_has_nothing_to_steer(tmp_path):
    with RunLock(DirectoryStore(tmp_path)):
        done = cerebro("stop", tmp_path)
    assert done.exit_code == 2
    assert "is starting its workers: wait" in done.stderr
