"""What a run tells beside its live view, and who shows it."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from cerebro.cli.run import tell_on_stderr
from cerebro.track.stderr import told_on_stderr

logger = logging.getLogger("cerebro.run")


@pytest.fixture(autouse=True)
def own_logging() -> Iterator[None]:
    """What is set of the package's logger is forgotten after a test."""
    package = logging.getLogger("cerebro")
    before = package.level, package.propagate, list(package.handlers)
    yield
    package.setLevel(before[0])
    package.propagate, package.handlers[:] = before[1], before[2]


def shown(capsys: pytest.CaptureFixture[str]) -> list[str]:
    """What of a run's lines comes to stderr."""
    with told_on_stderr():
        logger.info("why")
        logger.debug("how")
    return capsys.readouterr().err.splitlines()


def test_what_nobody_else_shows_is_shown(capsys):
    assert shown(capsys) == ["why"]


def test_it_is_shown_for_a_while_only(capsys):
    shown(capsys)
    logger.info("later")
    assert capsys.readouterr().err == ""


def test_the_user_s_own_logging_shows_it_alone(capsys, caplog):
    caplog.set_level(logging.INFO)
    assert shown(capsys) == []
    assert caplog.messages == ["why"]


def test_the_command_shows_it_once(capsys):
    tell_on_stderr(logging.INFO)
    assert shown(capsys) == ["why"]


def test_who_wants_to_hear_of_warnings_alone_is_left_alone(capsys):
    logging.getLogger("cerebro").setLevel(logging.WARNING)
    assert shown(capsys) == []


def test_warnings_go_where_they_would_have_gone(capsys, caplog):
    with told_on_stderr():
        logger.warning("careful")
    assert caplog.messages == ["careful"]
    assert capsys.readouterr().err == ""
