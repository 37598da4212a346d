"""Workers of the local backend that hang, in every way.

They have all the time that they need until they are where they hang; then a second or so.
"""

from __future__ import annotations

import concurrent.futures
import math
import os
import signal
from pathlib import Path

import pytest

from cerebro.backend import LocalBackend
from cerebro.backend.base import Done, Lost, Posted
from cerebro.backend.limits import Limits
from cerebro.errors import WorkerError
from cerebro.testing.backend_session import Session, make_call, wait_until_gone
from tests.processes import wait_for
from tests.unit.backend.forking import ForkingTask
from tests.unit.backend.hanging import BreakingTask, ReadyTask, SpinningTask

#: For one that is there, and does nothing.
STALL = Limits(stall_s=1.0)
#: For one whose process does nothing at all.
SILENCE = Limits(heartbeat_s=1.0)
#: For one that does not end by itself: from SIGTERM to SIGKILL.
STUBBORN = Limits(stop_s=0.2)


@pytest.fixture
def begin(tmp_path):
    """Starts workers for a task, with these limits."""
    backends = []

    def start(task=None, limits=None, workers=1):
        backends.append(LocalBackend(log_dir=str(tmp_path / "logs"), limits=limits or Limits()))
        session = Session(backends[-1], tmp_path)
        session.start(workers, task)
        return session

    yield start
    for backend in backends:
        backend.stop()


def limit(session, limits):
    """Judge worker 0 by these limits from now on, and no other."""
    session.backend._workers[0].watch._limits = limits
    session.backend._look_at = -math.inf


def serve_until(session, condition):
    """Let the backend see to its workers until something holds."""

    def tell():
        try:
            wait_for(condition, "what was waited for")
        finally:
            session.backend.post("it holds")

    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        telling = pool.submit(tell)
        session.next(Posted)
        telling.result()


def is_stopped(pid):
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def ignores_sigterm(pid):
    found = Path(f"/proc/{pid}/status").read_text().partition("SigIgn:")[2].split()[0]
    return bool(int(found, 16) >> (signal.SIGTERM - 1) & 1)


def lose(session, call, has_come, limits):
    """Run a visit; once its worker has come to where it hangs it is judged. How it was lost."""
    pid = session.pids[0]
    session.backend.submit(0, call, None)
    serve_until(session, lambda: has_come(pid))
    limit(session, limits)
    return see_off(session, call)


def see_off(session, call):
    """How the worker of this visit was lost; another must take its place."""
    pid = session.pids[0]
    lost = session.next(Lost)
    assert (lost.worker, lost.call) == (0, call)
    assert not lost.is_memory
    wait_until_gone(pid)
    session.join()
    assert session.pids[0] != pid
    assert isinstance(session.run(0, make_call()), Done)
    return lost.cause


def test_a_visit_that_makes_no_progress_is_ended_and_its_worker_replaced(begin):
    session = begin()
    cause = lose(session, make_call(fail="hang"), lambda pid: session.backend.progress(), STALL)
    assert cause == "hung: no batch for 1 s"


def test_an_endless_loop_of_the_task_is_found_though_its_process_lives(begin, tmp_path):
    spins = tmp_path / "spins"
    # It tells where it is before it ends.
    session = begin(SpinningTask(), Limits(stop_s=60.0))
    cause = lose(session, make_call(spin=str(spins)), lambda pid: spins.exists(), STALL)
    assert cause == "hung: no batch for 1 s"
    # And people see where.
    assert "spin_for_ever" in (tmp_path / "logs/worker-0.log").read_text()


def test_a_stopped_process_is_found_by_its_heartbeat(begin):
    cause = lose(begin(), make_call(fail="stop"), is_stopped, SILENCE)
    assert cause == "hung: no heartbeat for 1 s"


def test_a_worker_that_ignores_sigterm_is_killed(begin):
    session = begin(limits=STUBBORN)
    cause = lose(session, make_call(fail="stubborn"), ignores_sigterm, STALL)
    assert cause == "hung: no batch for 1 s"


def test_what_a_hung_task_has_started_ends_with_it(begin, tmp_path):
    session = begin(ForkingTask(tmp_path / "pid"), STUBBORN)
    lose(session, make_call(fail="stubborn"), ignores_sigterm, STALL)
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_state_that_a_hung_visit_was_given_is_as_it_was(begin):
    session = begin()
    state = session.train(0, make_call())
    before, batches = session.content(state), session.backend.progress()
    session.backend.submit(0, make_call(1, fail={"kind": "hang", "step": 1}), state)
    serve_until(session, lambda: session.backend.progress() > batches)
    limit(session, STALL)
    session.next(Lost)
    session.join()
    assert session.content(state) == before
    assert isinstance(session.run(0, make_call(1), state), Done)


def test_other_workers_go_on_while_one_hangs(begin):
    session = begin(workers=2)
    session.backend.submit(0, make_call(fail="stubborn"), None)
    answers = [session.run(1, make_call()) for _ in range(5)]
    assert all(isinstance(answer, Done) for answer in answers)


def test_a_worker_that_hangs_is_found_while_others_keep_answering(begin):
    session = begin(limits=STUBBORN, workers=2)
    session.backend.submit(0, make_call(fail="stubborn"), None)
    serve_until(session, lambda: ignores_sigterm(session.pids[0]))
    limit(session, STALL)
    session.backend.submit(1, make_call(), None)
    while (event := session.next(Done, Lost)).worker == 1:
        assert isinstance(event, Done)
        session.backend.submit(1, make_call(), None)
    assert isinstance(event, Lost)


def test_an_idle_worker_is_not_watched(begin):
    session = begin()
    os.kill(session.pids[0], signal.SIGSTOP)
    # The first look makes one suspected that is watched, and any later one finds it.
    for _ in range(3):
        limit(session, Limits(heartbeat_s=1e-6, stall_s=1e-6))
        session.backend.post("later")
        session.next(Posted)
    limit(session, Limits())
    os.kill(session.pids[0], signal.SIGCONT)
    assert isinstance(session.run(0, make_call()), Done)


def test_a_process_stopped_while_idle_is_found_when_it_has_a_visit(begin):
    session = begin()
    os.kill(session.pids[0], signal.SIGSTOP)
    assert lose(session, make_call(), is_stopped, SILENCE) == "hung: no heartbeat for 1 s"


def test_a_process_stopped_in_the_middle_of_an_answer_is_found(begin):
    # So long it may take to go on with an answer; silence is no reason to end it.
    session = begin(BreakingTask(), SILENCE)
    session.backend._limits = Limits()
    limit(session, Limits())
    session.backend.submit(0, make_call(break_off=True), None)
    assert see_off(session, make_call(break_off=True)) == "hung: in the middle of an answer"


def test_a_worker_that_is_never_ready_ends_the_run_in_the_end(tmp_path):
    limits = Limits(start_s=0.5, stop_s=0.2)
    backend = LocalBackend(limits=limits, log_dir=str(tmp_path / "logs"))
    session = Session(backend, tmp_path)
    backend.start(session.setup(f"{ReadyTask.__module__}:ReadyTask"), 1)
    with pytest.raises(WorkerError, match=r"hung: not ready after 0\.5 s"):
        backend.events()
    backend.stop()
