"""Workers of the local backend that hang, in every way, with limits of a second or so."""

from __future__ import annotations

import os
import signal
from dataclasses import replace

import pytest

from cerebro.backend import LocalBackend
from cerebro.backend.base import Done, Lost
from cerebro.backend.limits import Limits
from cerebro.errors import WorkerError
from cerebro.testing.backend_session import Session, make_call, wait_until_gone
from tests.unit.backend.forking import ForkingTask
from tests.unit.backend.hanging import BreakingTask, ReadyTask, SpinningTask

#: For one that is there, and does nothing. So no other limit is ever reached.
STALL = Limits(heartbeat_s=10.0, stall_s=1.0)
#: The same for one that has something to do before.
LONG_STALL = replace(STALL, stall_s=3.0)
#: For one whose process does nothing at all.
SILENCE = Limits(heartbeat_s=1.0)
#: From SIGTERM to SIGKILL, for one that does not end by itself.
STUBBORN_S = 0.2


@pytest.fixture
def begin(tmp_path):
    """Starts workers for a task, with these limits."""
    backends = []

    def start(task=None, limits=STALL, workers=1):
        backends.append(LocalBackend(log_dir=str(tmp_path / "logs"), limits=limits))
        session = Session(backends[-1], tmp_path)
        session.start(workers, task)
        return session

    yield start
    for backend in backends:
        backend.stop()


def spare_successors(session):
    """Workers that start from now on are well, and have the time that they need."""
    session.backend._limits = Limits(stop_s=session.backend._limits.stop_s)


def lose(session, call):
    """Run a visit in which the worker hangs; how it was lost. Another must take its place."""
    pid = session.pids[0]
    session.backend.submit(0, call, None)
    spare_successors(session)
    lost = session.next(Lost)
    assert (lost.worker, lost.call) == (0, call)
    assert not lost.is_memory
    wait_until_gone(pid)
    session.join()
    assert session.pids[0] != pid
    assert isinstance(session.run(0, make_call()), Done)
    return lost.cause


def test_a_visit_that_makes_no_progress_is_ended_and_its_worker_replaced(begin):
    assert lose(begin(), make_call(fail="hang")) == "hung: no batch for 1 s"


def test_an_endless_loop_of_the_task_is_found_though_its_process_lives(begin, tmp_path):
    session = begin(SpinningTask(), LONG_STALL)
    assert lose(session, make_call(spin=True)) == "hung: no batch for 3 s"
    # And people see where.
    assert "spin_for_ever" in (tmp_path / "logs/worker-0.log").read_text()


def test_a_stopped_process_is_found_by_its_heartbeat(begin):
    session = begin(limits=SILENCE)
    assert lose(session, make_call(fail="stop")) == "hung: no heartbeat for 1 s"


def test_a_worker_that_ignores_sigterm_is_killed(begin):
    session = begin(limits=replace(STALL, stop_s=STUBBORN_S))
    assert lose(session, make_call(fail="stubborn")) == "hung: no batch for 1 s"


def test_what_a_hung_task_has_started_ends_with_it(begin, tmp_path):
    limits = replace(LONG_STALL, stop_s=STUBBORN_S)
    session = begin(ForkingTask(tmp_path / "pid"), limits)
    lose(session, make_call(fail="stubborn"))
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_state_that_a_hung_visit_was_given_is_as_it_was(begin):
    session = begin(limits=LONG_STALL)
    state = session.train(0, make_call())
    before = session.content(state)
    session.backend.submit(0, make_call(1, fail={"kind": "hang", "step": 1}), state)
    spare_successors(session)
    session.next(Lost)
    session.join()
    assert session.content(state) == before
    assert isinstance(session.run(0, make_call(1), state), Done)


def test_other_workers_go_on_while_one_hangs(begin):
    session = begin(limits=Limits(), workers=2)
    session.backend.submit(0, make_call(fail="stubborn"), None)
    answers = [session.run(1, make_call()) for _ in range(5)]
    assert all(isinstance(answer, Done) for answer in answers)


def test_a_worker_that_hangs_is_found_while_others_keep_answering(begin):
    session = begin(limits=replace(LONG_STALL, stop_s=STUBBORN_S), workers=2)
    session.backend.submit(0, make_call(fail="stubborn"), None)
    session.backend.submit(1, make_call(), None)
    while (event := session.next(Done, Lost)).worker == 1:
        assert isinstance(event, Done)
        session.backend.submit(1, make_call(), None)
    assert isinstance(event, Lost)


def test_an_idle_worker_is_not_watched(begin):
    session = begin(limits=replace(SILENCE, heartbeat_s=3.0))
    os.kill(session.pids[0], signal.SIGSTOP)
    session.backend.post("later")
    session.take(1)
    os.kill(session.pids[0], signal.SIGCONT)
    assert isinstance(session.run(0, make_call()), Done)


def test_a_process_stopped_while_idle_is_found_when_it_has_a_visit(begin):
    session = begin(limits=SILENCE)
    os.kill(session.pids[0], signal.SIGSTOP)
    assert lose(session, make_call()) == "hung: no heartbeat for 1 s"


def test_a_process_stopped_in_the_middle_of_an_answer_is_found(begin):
    session = begin(BreakingTask(), limits=SILENCE)
    cause = lose(session, make_call(break_off=True))
    assert cause == "hung: in the middle of an answer"


def test_a_worker_that_is_never_ready_ends_the_run_in_the_end(tmp_path):
    limits = Limits(start_s=0.5, stop_s=0.2)
    backend = LocalBackend(limits=limits, log_dir=str(tmp_path / "logs"))
    session = Session(backend, tmp_path)
    backend.start(session.setup(f"{ReadyTask.__module__}:ReadyTask"), 1)
    with pytest.raises(WorkerError, match=r"hung: not ready after 0\.5 s"):
        backend.events()
    backend.stop()
