"""What the inline backend does beyond the contract."""

from __future__ import annotations

import os
from typing import ClassVar

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Done, Failed
from cerebro.backend.gang.ends import RankLost
from cerebro.errors import RunInterrupted, WorkerError
from cerebro.testing.backend_session import Session, make_call
from cerebro.testing.toy import ToyFramework, ToyTask


class Leaving(ToyFramework):
    """Ends as its params say."""

    def train(self, call, *args):
        if call.params[0].get("exit"):
            raise SystemExit(3)
        if call.params[0].get("interrupt"):
            raise RunInterrupted("stopped at once")
        return super().train(call, *args)


class LeavingTask(ToyTask):
    framework: ClassVar[str] = f"{__name__}:Leaving"


@pytest.fixture
def session(tmp_path):
    session = Session(InlineBackend(), tmp_path)
    session.backend.start(session.setup(LeavingTask()), 2)
    session.join()
    session.join()
    yield session
    session.backend.stop()


def test_all_workers_are_this_process(session):
    assert set(session.pids.values()) == {os.getpid()}


def test_visits_run_in_the_order_of_submission(session):
    calls = [make_call(), make_call(1)]
    session.backend.submit(1, calls[0], None)
    session.backend.submit(0, calls[1], None)
    answers = session.take(2)
    assert [event.call for event in answers if isinstance(event, Done)] == calls
    assert [event.worker for event in answers if isinstance(event, Done)] == [1, 0]


def test_a_task_that_exits_fails_its_visit_alone(session):
    answer = session.run(0, make_call(exit=True))
    assert isinstance(answer, Failed)
    assert answer.failure.error == "SystemExit"
    assert isinstance(session.run(0, make_call()), Done)


def test_a_second_ctrl_c_is_no_failure_of_the_visit(session):
    session.backend.submit(0, make_call(interrupt=True), None)
    with pytest.raises(RunInterrupted):
        session.backend.events()


class Short:
    """A gang of which a rank ends before it comes."""

    def open(self, worker):
        raise RankLost(1, -9)


def test_a_rank_that_is_lost_at_the_start_is_told_in_a_sentence():
    with pytest.raises(WorkerError, match="lost rank 1 of its gang, which was killed by SIGKILL"):
        InlineBackend().start(Short(), 1)
