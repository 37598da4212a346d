"""R14, R6: a run stops cleanly when asked, leaves no process behind, and has one driver."""

from __future__ import annotations

import random
import signal
import socket
import time

import pytest

from cerebro.storage.journal import encode
from cerebro.testing.history import check
from tests.experiments import SPACE, fast_folder, fit_toy, make_toy_data, outcome, toy_spec
from tests.processes import count_lines, count_visits, driving, hold, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGUSR1: 75}
EPOCHS = 4


@pytest.fixture(scope="module")
def home():
    """The data, and what a run that is never stopped makes of it."""
    with fast_folder() as path:
        make_toy_data(path / "data", shards=3)
        fit_toy(path / "whole", toy_spec(path / "data", epochs=EPOCHS))
        yield path


@pytest.fixture
def held(folder):
    """While this file is there, no run comes through its last epoch.

    One trial has nine visits before it. The other may wait for the worker of the one that is held.
    """
    return hold(folder, EPOCHS - 1)


def options_for(home, folder, *, visit_s, backend="local", workers=2):
    return {
        "task": "toy",
        "task_options": {
            "log": str(folder / "started"),
            "hold": str(folder / "hold"),
            "visit_s": visit_s,
        },
        "fit": {
            "space": SPACE,
            "num_epochs": EPOCHS,
            "batch_size": 16,
            "metric": "val_loss",
            "mode": "min",
        },
        "experiment": {
            "name": "run",
            "data": str(home / "data"),
            "store": str(folder / "runs"),
            "backend": backend,
            "workers": workers,
        },
    }


def assert_resumes_exactly(home, root):
    """Carry it to its end; it must be what it would have been without the stop."""
    fit_toy(root, toy_spec(home / "data", epochs=EPOCHS))
    check(root)
    assert outcome(root) == outcome(home / "whole")


def is_idle(root, started):
    """Whether its only worker is held, and all that was done before is durable."""
    lines = started.read_text().splitlines() if started.exists() else []
    epochs = [line.split()[1] for line in lines]
    return epochs[-1:] == [str(EPOCHS - 1)] and count_visits(root) == len(epochs) - 1


@pytest.mark.parametrize("number", EXIT_CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("visits", [0, 1, 4, 9])
def test_a_signal_ends_the_run_after_the_visits_in_flight(home, folder, held, seed, number, visits):
    options = options_for(home, folder, visit_s=0.05)
    rng = random.Random(f"{seed} {number} {visits}")
    with driving(options, folder / "output.txt") as driver:
        if visits:
            driver.wait_for_visits(visits)
        else:
            wait_for(lambda: (driver.root / "logs").exists(), "workers being started")
        time.sleep(rng.uniform(0.0, 0.1))  # the moment of the signal, not a wait
        driver.workers()
        driver.signal(number)
        held.unlink()
        assert driver.wait() == EXIT_CODES[number], driver.said()
        wait_for(lambda: not driver.survivors(), "workers gone")
    assert "RunInterrupted: stopped" in driver.said()
    # Whatever was started is finished and saved: nothing was lost.
    assert count_lines(folder / "started") == count_visits(driver.root)
    # A run that had not begun leaves no directory; any other is in order.
    check(driver.root, is_settled=bool(visits) or driver.root.exists())
    assert_resumes_exactly(home, driver.root)


def test_an_inline_run_stops_in_the_same_way(home, folder, held):
    options = options_for(home, folder, visit_s=0.05, backend="inline", workers=1)
    with driving(options, folder / "output.txt") as driver:
        driver.wait_for_visits(2)
        driver.signal(signal.SIGINT)
        held.unlink()
        assert driver.wait() == 130, driver.said()
    assert count_lines(folder / "started") == count_visits(driver.root)
    check(driver.root)
    assert_resumes_exactly(home, driver.root)


@pytest.mark.parametrize("second", [signal.SIGINT, signal.SIGTERM], ids=lambda number: number.name)
def test_a_second_signal_does_not_wait_for_the_visits_in_flight(home, folder, second):
    with driving(options_for(home, folder, visit_s=600.0), folder / "output.txt") as driver:
        wait_for(lambda: count_lines(folder / "started") == 2, "two visits started")
        driver.workers()
        driver.signal(signal.SIGINT)
        wait_for(lambda: "a second Ctrl-C stops at once" in driver.said(), "the first one heard")
        assert not driver.has_ended()
        driver.signal(second)
        assert driver.wait() == EXIT_CODES[second], driver.said()
        wait_for(lambda: not driver.survivors(), "workers gone")
    assert "RunInterrupted: stopped at once" in driver.said()
    check(driver.root)
    assert_resumes_exactly(home, driver.root)


def test_workers_die_with_a_driver_that_was_killed(home, folder):
    with driving(options_for(home, folder, visit_s=600.0), folder / "output.txt") as driver:
        wait_for(lambda: count_lines(folder / "started") == 2, "two visits started")
        assert len(driver.workers()) == 2
        driver.process.kill()
        driver.wait()
        wait_for(lambda: not driver.survivors(), "workers gone")


def test_a_second_driver_of_a_live_run_is_refused_and_the_first_goes_on(home, folder, held):
    options = options_for(home, folder, visit_s=0.0)
    with driving(options, folder / "first.txt") as first:
        first.wait_for_visits(1)
        with driving(options, folder / "second.txt") as second:
            assert second.wait() == 2
        assert "RunLockedError" in second.said()
        assert f"host {socket.gethostname()}, pid {first.pid}" in second.said()
        held.unlink()
        assert first.wait() == 0, first.said()
    check(first.root)
    assert outcome(first.root) == outcome(home / "whole")


def test_a_driver_stops_when_somebody_else_writes_its_journal(home, folder, held):
    options = options_for(home, folder, visit_s=0.0, workers=1)
    foreign = encode({"type": "forced", "field": "host", "old": "a", "new": "b"})
    with driving(options, folder / "output.txt") as driver:
        wait_for(lambda: is_idle(driver.root, folder / "started"), "nothing more to write")
        with open(driver.root / "journal.jsonl", "ab") as journal:
            journal.write(foreign)
        held.unlink()
        assert driver.wait() == 2
    assert "LeaseLostError" in driver.said()
    assert (driver.root / "journal.jsonl").read_bytes().endswith(foreign)
    assert_resumes_exactly(home, driver.root)
