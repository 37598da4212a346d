"""What the local backend does beyond the contract."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cerebro.backend import LocalBackend
from cerebro.errors import WorkerError
from cerebro.testing.backend_session import Session, make_call, wait_until_gone
from tests.unit.backend import growing

DRIVER = """
import sys
from pathlib import Path
from cerebro.backend import LocalBackend
from cerebro.testing.backend_session import Session, make_call
session = Session(LocalBackend(), Path(sys.argv[1]))
session.start(2)
session.backend.submit(0, make_call(fail="hang"), None)
print(*session.pids.values(), flush=True)
session.backend.events()
"""


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(log_dir=str(tmp_path / "logs"))
    yield backend
    backend.stop()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_worker_survives_its_driver(tmp_path, number):
    driver = subprocess.Popen(
        [sys.executable, "-c", DRIVER, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    with driver:
        assert driver.stdout is not None
        pids = [int(pid) for pid in driver.stdout.readline().split()]
        driver.send_signal(number)
    assert len(pids) == 2
    for pid in pids:
        wait_until_gone(pid)


def test_what_workers_print_goes_to_their_logs(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(growing.TalkingTask()), 2)
    session.join()
    session.join()
    session.train(1, make_call())
    assert (tmp_path / "logs/worker-1.log").read_text() == "training\n"
    assert (tmp_path / "logs/worker-0.log").read_text() == ""


def test_a_segfault_shows_its_place_in_the_log(backend, tmp_path):
    session = Session(backend, tmp_path)
    session.start(1)
    session.run(0, make_call(fail="segfault"))
    session.join()
    assert "Segmentation fault" in (tmp_path / "logs/worker-0.log").read_text()


def test_workers_that_cannot_start_leave_their_last_words(backend, tmp_path):
    dying = tmp_path / "dying.py"
    dying.write_text("import os\nprint('no licence', flush=True)\nos._exit(3)\n")
    session = Session(backend, tmp_path)
    backend.start(session.setup(f"{dying}:Task"), 1)
    with pytest.raises(WorkerError, match="no licence"):
        backend.events()


def test_workers_use_the_threads_they_were_given(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(growing.EnvironmentTask(), threads=3), 1)
    session.join()
    environment = session.train(0, make_call()).meta["environment"]
    assert environment == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3"}


def test_a_state_that_grows_gets_a_larger_slot(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(growing.GrowingTask()), 1)
    session.join()
    states = [session.train(0, make_call())]
    for visit in range(1, 4):
        states.append(session.train(0, make_call(visit), states[-1]))
    sizes = [state.bytes for state in states]
    assert sizes == sorted(set(sizes))
    assert sizes[-1] > 50_000
    for state, size in zip(states, sizes, strict=True):
        assert session.content(state) == growing.content(size)


def test_a_worker_does_not_see_ctrl_c(backend, tmp_path):
    session = Session(backend, tmp_path)
    session.start(1)
    os.kill(session.pids[0], signal.SIGINT)
    assert session.train(0, make_call()).bytes > 0


def test_a_task_from_a_script_travels_by_value(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import sys
from pathlib import Path
from cerebro.backend import LocalBackend
from cerebro.testing.backend_session import Session, make_call
from cerebro.testing.toy import ToyTask

class Mine(ToyTask):
    pass

if __name__ == "__main__":
    session = Session(LocalBackend(), Path({str(tmp_path)!r}))
    session.backend.start(session.setup(Mine()), 1)
    print(session.join().info.task_name)
    session.train(0, make_call())
    session.backend.stop()
"""
    )
    output = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    )
    assert output.stdout == "__main__:Mine\n"
