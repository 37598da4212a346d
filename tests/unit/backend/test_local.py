"""What the local backend does beyond the contract."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

from cerebro.backend import LocalBackend
from cerebro.backend.base import Done, Failed, Lost
from cerebro.errors import WorkerError
from cerebro.testing.backend_session import Session, make_call, wait_until_gone
from cerebro.types import Split
from tests.unit.backend import growing
from tests.unit.backend.forking import ForkingTask, UnreadableTask

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


FORKING_DRIVER = """
import sys
from pathlib import Path
from cerebro.backend import LocalBackend
from cerebro.testing.backend_session import Session, make_call
from tests.unit.backend.forking import ForkingTask
session = Session(LocalBackend(), Path(sys.argv[1]))
session.backend.start(session.setup(ForkingTask(Path({pid_file!r}))), 1)
session.join()
session.train(0, make_call())
print("trained", flush=True)
session.backend.events()
"""


@pytest.fixture
def backend(tmp_path):
    backend = LocalBackend(log_dir=str(tmp_path / "logs"))
    yield backend
    backend.stop()


def settle(session, worker, state):
    """What a worker has printed so far is in its log.

    It writes it out when it has answered, and then takes the next visit. This one prints nothing.
    """
    assert isinstance(session.run(worker, make_call(split=Split.VAL), state), Done)


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


def test_what_a_task_has_started_does_not_survive_the_driver_either(tmp_path):
    code = FORKING_DRIVER.format(pid_file=str(tmp_path / "pid"))
    driver = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    with driver:
        assert driver.stdout is not None
        assert driver.stdout.readline() == b"trained\n"
        driver.kill()
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_a_dead_worker_is_missed_though_its_pipe_lives_on_in_a_process_it_forked(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(ForkingTask(tmp_path / "pid")), 1)
    session.join()
    session.train(0, make_call())
    os.kill(session.pids[0], signal.SIGKILL)
    session.next(Lost)
    wait_until_gone(int((tmp_path / "pid").read_text()))


def test_an_answer_that_cannot_be_read_is_a_failure_of_its_visit(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(UnreadableTask()), 1)
    session.join()
    event = session.run(0, make_call())
    assert isinstance(event, Failed)
    assert "not a number" in event.failure.message


def test_a_worker_that_cannot_be_replaced_leaves_the_others_working(backend, tmp_path, caplog):
    module = tmp_path / "mine.py"
    module.write_text("from cerebro.testing.toy import ToyTask\n\nclass Mine(ToyTask): pass\n")
    session = Session(backend, tmp_path)
    backend.start(session.setup(f"{module}:Mine"), 2)
    session.join()
    session.join()
    module.write_text("this is no Python\n")
    os.kill(session.pids[0], signal.SIGKILL)
    session.next(Lost)
    state = session.train(1, make_call())
    while "fewer workers" not in caplog.text:
        state = session.train(1, make_call(1), state)
    assert "mine.py" in caplog.text


def test_a_worker_whose_gpu_has_failed_is_replaced(backend, tmp_path):
    session = Session(backend, tmp_path)
    session.start(1, growing.SpoiledTask())
    failed = session.run(0, make_call(is_wrong=True))
    assert isinstance(failed, Failed)
    assert failed.failure.message == "AcceleratorError: device-side assert triggered"
    lost = session.next(Lost)
    assert lost.call is None
    session.join()
    session.train(0, make_call())
    assert "its GPU fails it" in (tmp_path / "logs/worker-0.log").read_text()


def test_a_visit_that_a_worker_gets_after_its_gpu_has_failed_is_not_to_blame(backend, tmp_path):
    session = Session(backend, tmp_path)
    session.start(1, growing.SpoiledTask())
    assert isinstance(session.run(0, make_call(is_wrong=True)), Failed)
    call = make_call()
    backend.submit(0, call, None)
    lost = session.next(Lost)
    while lost.call is None:
        lost = session.next(Lost)
    assert (lost.call, lost.is_machine) == (call, True)


def test_what_workers_print_goes_to_their_logs(backend, tmp_path):
    session = Session(backend, tmp_path)
    backend.start(session.setup(growing.TalkingTask()), 2)
    session.join()
    session.join()
    state = session.train(1, make_call())
    settle(session, 1, state)
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
    assert environment == {"OMP_NUM_THREADS": "3", "MKL_NUM_THREADS": "3", "PYTHONHASHSEED": "0"}


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1])
def test_stopping_is_the_drivers_business(backend, tmp_path, number):
    session = Session(backend, tmp_path)
    session.start(1)
    os.kill(session.pids[0], number)
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


@pytest.mark.parametrize("busy", [False, True], ids=["idle", "busy"])
def test_when_a_device_is_full_all_its_workers_give_back_what_they_keep(backend, tmp_path, busy):
    session = Session(backend, tmp_path)
    session.start(2, growing.SharingTask())
    if busy:
        backend.submit(1, make_call(), None)
    backend.submit(0, make_call(fail="memory"), None)
    session.take(1 + busy)
    state = session.train(1, make_call())
    for worker in (0, 1):
        settle(session, worker, state)
        assert (tmp_path / f"logs/worker-{worker}.log").read_text() == "freed\n"
