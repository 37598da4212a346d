"""R14, R6: a run stops cleanly when asked, leaves no process behind, and has one driver."""

from __future__ import annotations

import random
import signal
import socket
import time

import pytest

from cerebro.storage.journal import encode
from cerebro.testing.history import check
from tests.experiments import fit_toy, make_toy_data, outcome, toy_spec
from tests.processes import count_lines, count_visits, driving, wait_for

pytestmark = pytest.mark.slow

SPACE = {"lr": [0.5, 0.05, 0.005]}
EXIT_CODES = {signal.SIGINT: 130, signal.SIGTERM: 75, signal.SIGUSR1: 75}


@pytest.fixture
def data(folder):
    make_toy_data(folder / "data", shards=3)
    return folder / "data"


def options_for(folder, *, visit_s, backend="local", workers=2):
    return {
        "task": "toy",
        "log": str(folder / "started"),
        "fit": {
            "space": {**SPACE, "visit_s": visit_s},
            "num_epochs": 3,
            "batch_size": 16,
            "metric": "val_loss",
            "mode": "min",
        },
        "experiment": {
            "name": "run",
            "data": str(folder / "data"),
            "store": str(folder / "runs"),
            "backend": backend,
            "workers": workers,
        },
    }


def assert_resumes_exactly(folder, options):
    """Run it again to its end; it must be what a run that was never stopped would have been."""
    with driving(options, folder / "resumed.txt") as driver:
        assert driver.wait() == 0, driver.said()
    check(driver.root)
    spec = toy_spec(folder / "data", options["fit"]["space"], epochs=3)
    fit_toy(folder / "whole", spec)
    assert outcome(driver.root) == outcome(folder / "whole")


@pytest.mark.parametrize("number", EXIT_CODES, ids=lambda number: number.name)
@pytest.mark.parametrize("visits", [0, 1, 4, 9])
def test_a_signal_ends_the_run_after_the_visits_in_flight(folder, data, seed, number, visits):
    options = options_for(folder, visit_s=0.05)
    rng = random.Random(f"{seed} {number} {visits}")
    with driving(options, folder / "output.txt") as driver:
        if visits:
            driver.wait_for_visits(visits)
        else:
            wait_for(lambda: (driver.root / "lock").exists(), "the run's directory")
        time.sleep(rng.uniform(0.0, 0.1))  # the moment of the signal, not a wait
        driver.workers()
        driver.signal(number)
        assert driver.wait(10.0) == EXIT_CODES[number], driver.said()
        wait_for(lambda: not driver.survivors(), "workers gone", 5.0)
    assert "RunInterrupted: stopped" in driver.said()
    # Whatever was started is finished and saved: nothing was lost.
    assert count_lines(folder / "started") == count_visits(driver.root)
    check(driver.root)
    assert_resumes_exactly(folder, options)


def test_an_inline_run_stops_in_the_same_way(folder, data):
    options = options_for(folder, visit_s=0.05, backend="inline", workers=1)
    with driving(options, folder / "output.txt") as driver:
        driver.wait_for_visits(2)
        driver.signal(signal.SIGINT)
        assert driver.wait(10.0) == 130, driver.said()
    assert count_lines(folder / "started") == count_visits(driver.root)
    check(driver.root)
    assert_resumes_exactly(folder, options)


def test_a_second_signal_does_not_wait_for_the_visits_in_flight(folder, data):
    options = options_for(folder, visit_s=60.0)
    with driving(options, folder / "output.txt") as driver:
        wait_for(lambda: count_lines(folder / "started") == 2, "two visits started")
        driver.workers()
        driver.signal(signal.SIGINT)
        assert not driver.has_ended()

        def insist():
            driver.signal(signal.SIGINT)
            return driver.has_ended()

        wait_for(insist, "the end", 5.0)
        assert driver.wait() == 130, driver.said()
        wait_for(lambda: not driver.survivors(), "workers gone", 5.0)
    assert "RunInterrupted: stopped at once" in driver.said()
    check(driver.root)


def test_workers_die_with_a_driver_that_was_killed(folder, data):
    with driving(options_for(folder, visit_s=60.0), folder / "output.txt") as driver:
        wait_for(lambda: count_lines(folder / "started") == 2, "two visits started")
        assert len(driver.workers()) == 2
        driver.process.kill()
        driver.wait()
        wait_for(lambda: not driver.survivors(), "workers gone", 1.0)


def test_a_second_driver_of_a_live_run_is_refused_and_the_first_goes_on(folder, data):
    options = options_for(folder, visit_s=0.1)
    with driving(options, folder / "first.txt") as first:
        first.wait_for_visits(1)
        with driving(options, folder / "second.txt") as second:
            assert second.wait() == 2
        assert "RunLockedError" in second.said()
        assert f"host {socket.gethostname()}, pid {first.pid}" in second.said()
        assert first.wait() == 0, first.said()
    check(first.root)
    assert_resumes_exactly(folder, options)


def test_a_driver_stops_when_somebody_else_writes_its_journal(folder, data):
    options = options_for(folder, visit_s=0.1)
    foreign = encode({"type": "forced", "field": "host", "old": "a", "new": "b"})
    with driving(options, folder / "output.txt") as driver:
        driver.wait_for_visits(2)
        with open(driver.root / "journal.jsonl", "ab") as journal:
            journal.write(foreign)
        assert driver.wait() == 2
    assert "LeaseLostError" in driver.said()
    assert (driver.root / "journal.jsonl").read_bytes().endswith(foreign)
    assert_resumes_exactly(folder, options)
