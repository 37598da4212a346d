"""R1, R2: SIGKILL of drivers and workers at random moments changes nothing but the time it takes.

CEREBRO_CHAOS_RUNS sets how many times each test is repeated; --seed repeats a schedule.
"""

from __future__ import annotations

import os
import random
import time
from collections import Counter
from dataclasses import dataclass

import pytest

from cerebro.data import digits, from_arrays
from cerebro.testing.history import check
from tests.experiments import STACK, make_toy_data, outcome
from tests.kills import durable_visits
from tests.processes import count_visits, driving, hold, is_alive, wait_for

RUNS = int(os.environ.get("CEREBRO_CHAOS_RUNS", "2"))

SHARDS = 4

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]


@dataclass
class Toll:
    """What the nemesis did to one run."""

    workers: int = 0
    drivers: int = 0

    def lost_visits(self, trials: int, workers: int) -> int:
        """The most visits that may be trained twice.

        A worker takes the visit in flight with it; a driver those of all workers and, of each
        trial, the one visit that is done but not durable yet.
        """
        # What is lost with a stack is a visit of each of its trials.
        size = 1 if STACK is False else trials
        return size * self.workers + self.drivers * (size * workers + trials)


def options_for(folder, name, task, fit, *, backend="local", workers=1, **task_options):
    return {
        "task": task,
        "task_options": {"log": str(folder / f"{name}.visits"), **task_options},
        "fit": fit,
        "experiment": {
            "name": name,
            "data": str(folder / "data"),
            "store": str(folder / "runs"),
            "backend": backend,
            "workers": workers,
            "seed": 3,
        },
    }


class Patience:
    """That of a driver ends with the third worker that dies in one visit, so two may in a row.

    Args:
        trials: How many the run has.
        most: How many visits each of them has in all.
    """

    def __init__(self, driver, trials, most):
        self._driver = driver
        self._trials = range(trials)
        self._most = most
        self._workers = None

    def wait(self, workers):
        """After two more kills of workers: until no trial is where it was."""
        self._workers = workers if self._workers is None else self._workers
        if workers < self._workers + 2:
            return
        before = self._visits()
        wait_for(lambda: self._driver.has_ended() or self._has_gone_on(before), "all go on")
        self._workers = workers

    def _has_gone_on(self, before):
        # One visit may be done but not durable: then the next one is in flight.
        now = self._visits()
        return all(now[trial] >= min(before[trial] + 2, self._most) for trial in self._trials)

    def _visits(self):
        return Counter(trial for trial, _, _ in durable_visits(self._driver.root))


def carry_through(options, folder, rng, *, trials, kills, delay_s, held):
    """Start and restart drivers, killing one process after another, until the run is finished.

    It cannot be while the file is there, which is until the first kill.
    """
    toll, before = Toll(), 0
    while True:
        with driving(options, folder / "output.txt") as driver:
            patience = Patience(driver, trials, SHARDS * options["fit"]["num_epochs"])
            while not driver.has_ended() and toll.workers + toll.drivers < kills:
                driver.wait_for_visits(before + 1)
                patience.wait(toll.workers)
                time.sleep(rng.uniform(*delay_s))  # the moment of the strike, not a wait
                strike(driver, rng, toll)
                held.unlink(missing_ok=True)
                before = count_visits(driver.root)
            code = driver.wait()
            wait_for(lambda driver=driver: not driver.survivors(), "workers gone")
        if code == 0:
            return toll
        check(driver.root, is_settled=False)


def strike(driver, rng, toll):
    workers = driver.workers()
    target = rng.randrange(1 + len(workers))
    if driver.has_ended():
        return
    if target == 0:
        driver.kill()
        toll.drivers += 1
    elif is_alive(workers[target - 1]):
        workers[target - 1].kill()
        toll.workers += 1


def assert_exact_through_kills(
    folder, task, fit, rng, *, workers, trials, visits, kills, delay_s, **task_options
):
    with driving(
        options_for(folder, "whole", task, fit, backend="inline"), folder / "whole.txt"
    ) as whole:
        assert whole.wait() == 0, whole.said()
    for number in range(RUNS):
        options = options_for(folder, f"run{number}", task, fit, workers=workers, **task_options)
        held = hold(folder, fit["num_epochs"] - 1)
        toll = carry_through(
            options, folder, rng, trials=trials, kills=kills, delay_s=delay_s, held=held
        )
        root = folder / "runs" / f"run{number}"
        assert outcome(root) == outcome(folder / "runs" / "whole")
        check(root)
        assert toll.workers + toll.drivers > 0
        if visits is None:
            continue
        started = len((folder / f"run{number}.visits").read_bytes().splitlines())
        assert visits <= started <= visits + toll.lost_visits(trials, workers)


def test_toy_runs_are_exact_through_many_kills(folder, seed):
    make_toy_data(folder / "data", shards=SHARDS, rows=200)
    fit = {
        "space": {"lr": [0.5, 0.05, 0.005]},
        "num_epochs": 5,
        "batch_size": 16,
        "metric": "val_loss",
        "mode": "min",
    }
    assert_exact_through_kills(
        *(folder, "toy", fit, random.Random(seed)),
        **{"workers": 3, "trials": 3, "visits": 60, "kills": 15, "delay_s": (0.0, 0.2)},
        visit_s=0.02,
        hold=str(folder / "hold"),
    )


def test_torch_runs_are_exact_through_kills(folder, seed):
    from_arrays(folder / "data", train=digits(), shards=SHARDS, validation=0.2)
    fit = {
        "space": {"lr": [0.01, 0.001], "width": [32, 48]},
        "num_epochs": 4,
        "batch_size": 16,
        "metric": "val_accuracy",
        "mode": "max",
    }
    # The task's log has a line for every trial that begins a visit alone, and none for a stack.
    visits = 64 if os.environ.get("CEREBRO_TEST_STACK", "false") == "false" else None
    assert_exact_through_kills(
        *(folder, "net", fit, random.Random(seed)),
        **{"workers": 2, "trials": 4, "visits": visits, "kills": 4, "delay_s": (0.1, 1.0)},
        hold=str(folder / f"hold{fit['num_epochs'] - 1}"),
    )
