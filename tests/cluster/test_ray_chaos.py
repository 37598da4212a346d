"""R1, R2, R6, R12, R14 on several nodes of Ray: whatever is killed, at random and in every phase.

CEREBRO_CHAOS_RUNS sets how many times the random test is repeated (half as often with PyTorch);
--seed repeats a schedule.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import random
import signal
import socket
import time
from collections import Counter

import numpy as np
import psutil
import pytest

from cerebro.data import digits, from_arrays
from cerebro.testing.history import check
from tests.cluster.rays import nodes
from tests.cluster.striking import Phase, Plan, Victim
from tests.experiments import fast_folder, make_toy_data, outcome
from tests.processes import count_lines, count_visits, driving, hold, is_alive, wait_for

RUNS = int(os.environ.get("CEREBRO_CHAOS_RUNS", "2"))
#: Visits at a time. There is a node more than that.
WORKERS = 2
PATIENCE_S = 300.0
#: How long workers may outlive their driver, however busy the machine is.
GONE_S = 60.0

pytestmark = [pytest.mark.ray, pytest.mark.chaos, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def cluster():
    """A head, and nodes with room for one worker each."""
    with nodes(*[1] * (WORKERS + 1)) as found:
        yield found


@pytest.fixture
def folder():
    with fast_folder() as path:
        yield path


class Toll(Counter[str]):
    """What was killed in one run: how many of each `Victim`."""

    def __str__(self) -> str:
        return ", ".join(f"{count} x {victim}" for victim, count in sorted(self.items()))

    def lost_visits(self, trials: int) -> int:
        """The most visits that may be trained twice.

        A worker, or its actor, takes the visit in flight with it, and no state. A node takes the
        states that are only there, too; of each trial, one visit at most is done and not durable,
        and one is in flight that began with it. So does the driver.
        """
        alone = self[Victim.WORKER] + self[Victim.AGENT]
        return alone + (self[Victim.NODE] + self[Victim.DRIVER]) * (WORKERS + trials)


def options_for(folder, name, task, fit, backend, **task_options):
    return {
        "task": task,
        "task_options": {"log": str(folder / f"{name}.visits"), **task_options},
        "fit": {"batch_size": 16, "metric": "val_loss", "mode": "min", "stack": False, **fit},
        "experiment": {
            "name": name,
            "data": str(folder / "data"),
            "store": str(folder / "runs"),
            "backend": backend,
            "workers": 1 if backend == "inline" else WORKERS,
            "seed": 3,
        },
    }


def make_oracle(folder, task, fit, **task_options):
    options = options_for(folder, "oracle", task, fit, "inline", **task_options)
    with driving(options, folder / "oracle.txt") as driver:
        assert driver.wait(PATIENCE_S) == 0, driver.said()
    return outcome(folder / "runs" / "oracle")


def assert_exact(folder, name, expected, visits, toll, trials):
    root = folder / "runs" / name
    assert outcome(root) == expected
    check(root)
    assert visits <= count_lines(folder / f"{name}.visits") <= visits + toll.lost_visits(trials)


# At random


class Nemesis:
    """Kills one thing after another, each kind as often as any other.

    No run is finished while the file `held` is there, which is until the first strike.
    """

    def __init__(self, cluster, rng, rounds, delay_s, held):
        self.cluster, self.rng, self.delay_s, self.held = cluster, rng, delay_s, held
        self.left = [victim for _ in range(rounds) for victim in Victim]
        rng.shuffle(self.left)
        self.toll = Toll()

    def carry_through(self, options, output):
        """Start and restart drivers until the run is finished; what was killed meanwhile."""
        while True:
            with driving(options, output) as driver:
                while self.left and not driver.has_ended():
                    self.wait(driver)
                    self.strike(driver)
                code = driver.wait(PATIENCE_S)
                wait_for(lambda: not self.cluster.agents(), "workers gone", GONE_S)
            if code == 0:
                return self.toll
            assert code == -signal.SIGKILL, driver.said()
            check(driver.root, is_settled=False)

    def wait(self, driver):
        """Until the run has gone on, and for a moment more."""
        driver.wait_for_visits(count_visits(driver.root) + WORKERS, PATIENCE_S)
        time.sleep(self.rng.uniform(*self.delay_s))  # the moment of the strike, not a wait

    def strike(self, driver):
        victim = self.left[-1]
        if driver.has_ended() or not self.kill(victim, driver):
            return
        self.held.unlink(missing_ok=True)
        self.left.pop()
        self.toll[victim] += 1

    def kill(self, victim, driver):
        """Whether there was one to kill."""
        if victim is Victim.DRIVER:
            driver.kill()
            return True
        cluster = self.cluster
        find = {
            Victim.WORKER: cluster.workers,
            Victim.AGENT: cluster.agents,
            Victim.NODE: cluster.busy,
        }
        found = find[victim]()
        if not found:
            return False
        with contextlib.suppress(psutil.NoSuchProcess):
            self.rng.choice(found).kill()
        if victim is Victim.NODE:
            wait_for(cluster.renew, "another node")
        return True


def assert_exact_through_kills(
    cluster, folder, task, fit, rng, *, runs, trials, visits, rounds, delay_s, **task_options
):
    expected = make_oracle(folder, task, fit)
    for number in range(runs):
        name, began = f"run{number}", time.monotonic()
        options = options_for(folder, name, task, fit, f"ray:{cluster.address}", **task_options)
        held = hold(folder, fit["num_epochs"] - 1)
        nemesis = Nemesis(cluster, rng, rounds, delay_s, held)
        toll = nemesis.carry_through(options, folder / f"{name}.txt")
        took_s, again = time.monotonic() - began, count_lines(folder / f"{name}.visits") - visits
        print(f"{task} {number}: {toll} in {took_s:.0f} s; {again} visits again")
        assert_exact(folder, name, expected, visits, toll, trials)
        assert toll


def test_toy_runs_on_ray_are_exact_through_kills(cluster, folder, seed):
    make_toy_data(folder / "data", shards=4, rows=200)
    fit = {"space": {"lr": [0.5, 0.05, 0.005]}, "num_epochs": 8}
    assert_exact_through_kills(
        *(cluster, folder, "toy", fit, random.Random(seed)),
        **{"runs": RUNS, "trials": 3, "visits": 96, "rounds": 2},
        **{"delay_s": (0.0, 0.5), "visit_s": 0.1, "hold": str(folder / "hold")},
    )


def test_torch_runs_on_ray_are_exact_through_kills(cluster, folder, seed):
    from_arrays(folder / "data", train=digits(), shards=4, validation=0.2)
    fit = {"space": {"lr": [0.01, 0.001], "width": [32]}, "num_epochs": 10}
    assert_exact_through_kills(
        *(cluster, folder, "net", fit, random.Random(seed)),
        **{"runs": max(1, RUNS // 2), "trials": 2, "visits": 80, "rounds": 1},
        **{"delay_s": (0.1, 1.0), "hold": str(folder / f"hold{fit['num_epochs'] - 1}")},
    )


# In every phase

#: Three shards, and states of 8 MB.
SHARDS, EPOCHS, FEATURES, CLASSES = 3, 7, 512, 1000
FIT = {"space": {"lr": [0.5, 0.05, 0.005]}, "num_epochs": EPOCHS}
TRIALS = 3
VISITS = TRIALS * SHARDS * EPOCHS


@pytest.fixture(scope="module")
def wide():
    """Data that makes large states, and what a run that is left alone makes of it."""
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 160)
    x = (rng.normal(size=(160, FEATURES)) + y[:, None]).astype(np.float32)
    with fast_folder() as path:
        from_arrays(path / "data", train={"x": x, "y": y}, shards=SHARDS, validation=0.25)
        yield path, make_oracle(path, "toy", FIT, classes=CLASSES)


def carry_through_phases(cluster, folder, plan, environment=None):
    """Start drivers and nodes again until the run is finished; what it is called."""
    name = "-".join([plan.victim, signal.Signals(plan.number).name])
    options = options_for(folder, name, "toy", FIT, "ray", classes=CLASSES)
    options["plan"] = dataclasses.asdict(plan)
    options["ray"] = {"address": cluster.address, "workers": options["experiment"].pop("workers")}
    how = {"module": "tests.cluster.struck", "environment": environment}
    for _ in range(len(plan.phases) + 1):
        with driving(options, folder / f"{name}.txt", **how) as driver:
            wait_for(
                lambda driver=driver: not cluster.renew() and driver.has_ended(),
                f"the end of the driver of {name}, struck so far: {plan.struck()}",
                PATIENCE_S,
            )
            code = driver.wait()
            wait_for(lambda: not cluster.agents(), "workers gone", GONE_S)
        if code == 0:
            return name
        assert (plan.victim, code) == (Victim.DRIVER, -signal.SIGKILL), driver.said()
    raise AssertionError(f"the driver was killed too often: {plan.struck()}")


@pytest.mark.parametrize("victim", list(Victim))
def test_a_run_on_ray_is_exact_whatever_is_killed_in_each_of_its_phases(
    cluster, wide, tmp_path, victim
):
    folder, expected = wide
    plan = Plan(str(tmp_path), victim, tuple(Phase))
    name = carry_through_phases(cluster, folder, plan)
    assert plan.struck().keys() == set(Phase)
    toll = Toll({victim: len(Phase)})
    assert_exact(folder, name, expected, VISITS, toll, TRIALS)


@pytest.mark.parametrize("victim", [Victim.WORKER, Victim.AGENT])
def test_what_stands_still_on_ray_is_ended_and_its_visit_moved(cluster, wide, tmp_path, victim):
    folder, expected = wide
    plan = Plan(str(tmp_path), victim, (Phase.TRAINING,), signal.SIGSTOP)
    name = carry_through_phases(cluster, folder, plan, {"CEREBRO_HEARTBEAT_S": "8"})
    (pid,) = plan.struck().values()
    wait_for(lambda: not psutil.pid_exists(pid), "the end of what stood still", GONE_S)
    assert_exact(folder, name, expected, VISITS, Toll({victim: 1}), TRIALS)


# Drivers


def held_options(cluster, folder, fit):
    """Visits of epoch e do not end while there is a file "hold" e."""
    held = {"hold": str(folder / "hold"), "visit_s": 0.1}
    return options_for(folder, "run", "toy", fit, f"ray:{cluster.address}", **held)


def wait_for_lines(folder, count, driver):
    wait_for(
        lambda: driver.has_ended() or count_lines(folder / "run.visits") >= count,
        f"the start of {count} visits; it said:\n{driver.said()}",
        PATIENCE_S,
    )


def test_a_second_driver_on_ray_is_refused_and_the_first_goes_on(cluster, folder):
    make_toy_data(folder / "data", shards=2)
    fit = {"space": {"lr": [0.5, 0.05]}, "num_epochs": 2}
    expected = make_oracle(folder, "toy", fit)
    options = held_options(cluster, folder, fit)
    gate = hold(folder, 0)
    with driving(options, folder / "first.txt") as first:
        wait_for_lines(folder, 1, first)
        with driving(options, folder / "second.txt") as second:
            assert second.wait(PATIENCE_S) == 2, second.said()
        assert "RunLockedError" in second.said()
        assert f"host {socket.gethostname()}, pid {first.pid}" in second.said()
        gate.unlink()
        assert first.wait(PATIENCE_S) == 0, first.said()
    assert_exact(folder, "run", expected, 8, Toll(), 2)


def test_a_driver_on_ray_that_is_stopped_or_killed_leaves_nothing_and_is_resumed(cluster, folder):
    make_toy_data(folder / "data", shards=3)
    fit = {"space": {"lr": [0.5, 0.05]}, "num_epochs": 4}
    expected = make_oracle(folder, "toy", fit)
    options = held_options(cluster, folder, fit)
    gates = [hold(folder, epoch) for epoch in (0, 2)]
    with driving(options, folder / "first.txt") as first:
        # Each worker has one, which does not end: nobody does all before the other comes.
        wait_for_lines(folder, WORKERS, first)
        processes = [*cluster.workers(), *cluster.agents()]
        assert len(processes) == 2 * WORKERS
        first.signal(signal.SIGINT)
        wait_for(lambda: "stopping after" in first.said(), "the signal is heard")
        gates[0].unlink()
        assert first.wait(PATIENCE_S) == 130, first.said()
        wait_for(lambda: not any(map(is_alive, processes)), "workers gone", GONE_S)
    assert "RunInterrupted: stopped" in first.said()
    # Whatever was started is finished and saved: nothing was lost.
    assert count_lines(folder / "run.visits") == count_visits(first.root)
    check(first.root)
    with driving(options, folder / "second.txt") as second:
        second.wait_for_visits(count_visits(first.root) + 2, PATIENCE_S)
        processes = [*cluster.workers(), *cluster.agents()]
        second.kill()
        wait_for(lambda: not any(map(is_alive, processes)), "workers gone", GONE_S)
    gates[1].unlink()
    with driving(options, folder / "third.txt") as third:
        assert third.wait(PATIENCE_S) == 0, third.said()
    assert_exact(folder, "run", expected, 24, Toll({Victim.DRIVER: 1}), 2)
