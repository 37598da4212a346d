from __future__ import annotations

import os
import queue
import signal
import threading

import pytest

from cerebro.errors import RunInterrupted
from cerebro.run.signals import StopSignals, interrupted

SIGNALS = [signal.SIGINT, signal.SIGTERM, signal.SIGUSR1]


def send(number: int) -> None:
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", SIGNALS, ids=lambda number: number.name)
def test_the_first_signal_asks_to_stop(number):
    asked: list[int] = []
    with StopSignals(asked.append):
        send(number)
        assert asked == [number]


@pytest.mark.parametrize(
    ("second", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 75), (signal.SIGUSR1, 75)]
)
def test_the_second_signal_stops_at_once(second, code):
    asked: list[int] = []
    with StopSignals(asked.append):
        send(signal.SIGINT)
        with pytest.raises(RunInterrupted, match="the same command resumes the run") as caught:
            send(second)
    assert asked == [signal.SIGINT]
    assert caught.value.exit_code == code


def test_a_third_signal_does_not_disturb_the_end():
    asked: list[int] = []
    with StopSignals(asked.append):
        send(signal.SIGINT)
        with pytest.raises(RunInterrupted):
            send(signal.SIGINT)
        for number in SIGNALS:
            send(number)
    assert asked == [signal.SIGINT]


def test_handlers_are_put_back_however_it_ends():
    before = [signal.getsignal(number) for number in SIGNALS]
    with StopSignals(lambda number: None):
        assert [signal.getsignal(number) for number in SIGNALS] != before
    assert [signal.getsignal(number) for number in SIGNALS] == before
    with pytest.raises(KeyError), StopSignals(lambda number: None):
        raise KeyError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_another_thread_changes_nothing():
    before = [signal.getsignal(number) for number in SIGNALS]
    seen = []

    def work() -> None:
        with StopSignals(lambda number: None):
            seen.extend(signal.getsignal(number) for number in SIGNALS)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == before


def test_one_that_another_thread_takes_wakes_the_main_thread():
    """It would wait for ever: a signal is handled in the main thread, once that does not wait."""
    asked: list[int] = []
    posted: queue.Queue[str] = queue.Queue()

    def work() -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

    threads = set(threading.enumerate())
    with StopSignals(asked.append, lambda: posted.put("woken")):
        thread = threading.Thread(target=work)
        thread.start()
        assert posted.get(timeout=60) == "woken"
        assert asked == [signal.SIGTERM]
        thread.join()
    # Threads of others may end meanwhile.
    assert set(threading.enumerate()) <= threads
    assert signal.set_wakeup_fd(-1) == -1


@pytest.mark.filterwarnings("ignore:.*multi-threaded:DeprecationWarning")
def test_it_ends_though_a_child_that_was_forked_lives_on():
    with StopSignals(lambda number: None, lambda: None):
        child = os.fork()
        if not child:
            signal.pause()
            os._exit(0)
    os.kill(child, signal.SIGKILL)
    assert os.waitpid(child, 0)[1] == signal.SIGKILL


def test_the_exit_code_of_one_error_is_not_that_of_the_next():
    assert interrupted(signal.SIGTERM, "x").exit_code == 75
    assert RunInterrupted("x").exit_code == 130
