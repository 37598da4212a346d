"""What every backend must do whose workers are processes of their own on this machine.

Subclass `ProcessBackendContract` in a test module, name the subclass `Test...`, and write `make`.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

from cerebro.backend.base import Done, Joined, Lost
from cerebro.errors import CerebroError, UsageError
from cerebro.testing.backend_contract import BackendContract, raises
from cerebro.testing.backend_session import (
    DEADLINE_S,
    fault_at,
    is_running,
    make_call,
    wait_until_gone,
)
from cerebro.testing.toy import ToyTask


class ProcessBackendContract(BackendContract):
    """Tests that hold where every worker is a process of its own on this machine.

    >>> issubclass(ProcessBackendContract, BackendContract)
    True
    """

    def test_workers_are_processes_of_their_own(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            assert len({os.getpid(), *session.pids.values()}) == 3

    def test_the_end_leaves_no_process(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            session.backend.stop()
            assert not any(map(is_running, session.pids.values()))

    def test_the_end_does_not_wait_for_visits(self, tmp_path: Path) -> None:
        log = tmp_path / "visits"
        os.mkfifo(log)
        with self.unstarted(tmp_path) as session, open(log, "r+b", buffering=0) as visits:
            session.start(2, ToyTask(visit_s=1000, log=str(log)))
            session.backend.submit(0, make_call(fail="hang"), None)
            session.backend.submit(1, make_call(), None)
            # Both are under way once each has written its line.
            lines = {visits.readline(), visits.readline()}
            assert lines == {f"0 0 0 0 {pid}\n".encode() for pid in session.pids.values()}
            session.backend.stop()
            assert not any(map(is_running, session.pids.values()))

    def test_the_end_does_not_wait_for_workers_to_start(self, tmp_path: Path) -> None:
        with self.unstarted(tmp_path) as session:
            session.backend.start(session.setup(), 2)
            began = time.monotonic()
        assert time.monotonic() - began < DEADLINE_S

    def test_a_worker_that_ends_is_lost_and_another_joins_in_its_place(
        self, tmp_path: Path
    ) -> None:
        causes = {"exit": "exited with code 1", "segfault": "SIGSEGV", "kill": "SIGKILL"}
        for kind, cause in causes.items():
            with self.session(tmp_path / kind, workers=2) as session:
                state = session.train(0, make_call())
                before = session.content(state)
                first = session.pids[1]
                lost = session.run(1, make_call(1, fail=fault_at(1, kind)), state)
                assert isinstance(lost, Lost)
                assert cause in lost.cause
                assert session.join().info.worker == 1
                assert session.pids[1] != first
                assert session.content(state) == before
                assert isinstance(session.run(1, make_call(1), state), Done)

    def test_a_worker_killed_while_idle_is_lost_without_a_visit(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            os.kill(session.pids[0], signal.SIGKILL)
            lost = session.next(Lost)
            assert isinstance(lost, Lost)
            assert lost.call is None
            assert session.join().info.worker == 0

    def test_a_visit_for_a_worker_that_just_died_is_answered(self, tmp_path: Path) -> None:
        with self.session(tmp_path) as session:
            os.kill(session.pids[0], signal.SIGKILL)
            wait_until_gone(session.pids[0])
            assert isinstance(session.run(0, make_call()), Lost)
            session.join()
            assert isinstance(session.run(0, make_call()), Done)

    def test_a_visit_sent_before_a_loss_was_noticed_is_not_mistaken_for_a_later_one(
        self, tmp_path: Path
    ) -> None:
        with self.session(tmp_path) as session:
            os.kill(session.pids[0], signal.SIGKILL)
            session.next(Lost)
            first, second = make_call(), replace(make_call(), trials=(1,), unit=1)
            session.backend.submit(0, first, None)
            answer = session.next(Lost)
            assert isinstance(answer, Lost)
            assert answer.call == first
            session.join()
            state = session.train(0, second)
            assert session.content(state) == session.content(session.train(0, second))
            assert session.content(state) != session.content(session.train(0, first))

    def test_other_workers_go_on_when_one_is_lost(self, tmp_path: Path) -> None:
        with self.session(tmp_path, workers=2) as session:
            session.backend.submit(0, make_call(fail="exit"), None)
            session.backend.submit(1, make_call(), None)
            events = session.take(3)
            assert {type(event) for event in events} == {Lost, Done, Joined}

    def test_a_task_that_cannot_be_sent_is_a_usage_error(self, tmp_path: Path) -> None:
        task = ToyTask()
        task.lock = threading.Lock()  # type: ignore[attr-defined]
        with self.unstarted(tmp_path) as session, raises(UsageError) as caught:
            session.backend.start(session.setup(task), 1)
            session.backend.events()
        assert "ToyTask" in str(caught.exception)

    def test_workers_that_cannot_start_end_the_run(self, tmp_path: Path) -> None:
        dying = tmp_path / "dying.py"
        dying.write_text("import os\nos._exit(3)\n")
        with self.unstarted(tmp_path) as session, raises(CerebroError) as caught:
            session.backend.start(session.setup(f"{dying}:Task"), 1)
            session.backend.events()
        assert "code 3" in str(caught.exception)
