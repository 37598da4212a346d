from __future__ import annotations

import random
from heapq import heappop, heappush

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.mop.balance import Balance
from cerebro.mop.invariants import validate
from cerebro.mop.messages import Event, Start, UnitAdded, VisitDone, WorkerJoined, WorkerLost
from cerebro.mop.planner import Planner
from cerebro.mop.simulate import Costs, Outage, simulate
from cerebro.mop.speeds import Speeds
from cerebro.mop.state import UnitState
from cerebro.mop.visit import Unit, Visit
from tests.optimum import Optimum


def compared(*ratios: float, is_sure: bool = True) -> float:
    """What the second worker's speed is against the first's after these comparisons."""
    speeds = Speeds()
    first, second = speeds.join(0), speeds.join(1)
    for ratio in ratios:
        error = ratio * first.speed / second.speed
        speeds.compare(second, first, error, is_sure=is_sure)
    return second.speed / first.speed


def test_one_comparison_is_believed_until_there_are_more() -> None:
    assert compared(4.0) == pytest.approx(4.0)
    assert compared(1.0, 1.0, 1.0, 1.0, 8.0) < 2.0


def test_a_worker_that_becomes_slower_is_found_out() -> None:
    assert compared(*[1.0] * 50, *[0.25] * 20) == pytest.approx(0.25, rel=0.2)


def test_first_visits_count_until_there_are_others() -> None:
    assert compared(5.0, 1.0, is_sure=False) == pytest.approx(1.0)


@pytest.mark.parametrize("workers", [4, 40])
def test_what_no_visit_has_measured_yet_counts_as_work(workers: int) -> None:
    balance = Balance(shards=8)
    for worker in range(workers):
        balance.join(worker)
    units = [UnitState(Unit(number, (number,), 0, 1), 8) for number in range(10 * workers)]
    for unit in units:
        balance.add(unit)
    balance.trained(0, units[0], seconds=4.0)
    balance.trained(1, units[0], seconds=1.0)
    assert balance.speeds.differ
    # With so much to do, a slow worker makes nobody late.
    assert not balance.is_tight


@pytest.mark.parametrize(("ratio", "differ"), [(1.2, False), (1.5, True)])
def test_workers_that_are_nearly_alike_are_alike(ratio: float, differ: bool) -> None:
    speeds = Speeds()
    first, second = speeds.join(0), speeds.join(1)
    speeds.compare(second, first, error=ratio, is_sure=True)
    assert speeds.differ is differ


def test_nothing_is_known_of_a_worker_that_comes_back() -> None:
    speeds = Speeds()
    first, second = speeds.join(0), speeds.join(1)
    speeds.compare(second, first, error=4.0, is_sure=True)
    speeds.lose(0)
    assert not speeds.differ
    assert speeds.join(0).speed == second.speed


class Driver:
    """Feeds a planner by hand: visits end when they are told to, after so many seconds."""

    def __init__(self, train_shards: int, workers: int, units: int, epochs: int = 1) -> None:
        self.planner = Planner(train_shards, max_lag=None)
        self.running: dict[int, Visit] = {}
        for worker in range(workers):
            self.send(WorkerJoined(worker))
        for number in range(units):
            self.send(UnitAdded(Unit(number, (number,), number, epochs)))

    def send(self, event: Event) -> None:
        for instruction in self.planner.handle(event):
            if isinstance(instruction, Start):
                self.running[instruction.workers[0]] = instruction.visit
        validate(self.planner)

    def finish(self, worker: int, seconds: float) -> None:
        unit, epoch, step, phase, _, attempt = self.running.pop(worker)
        self.send(VisitDone(unit, epoch, step, phase, attempt, worker, seconds))


def one_slow_worker(seconds: float = 4.0) -> Driver:
    """Worker 0 is through with its first visit when worker 1 has one visit of its unit left."""
    driver = Driver(train_shards=5, workers=2, units=2)
    for _ in range(4):
        driver.finish(1, seconds / 4.0)
    driver.finish(0, seconds)
    return driver


def test_a_slow_worker_leaves_the_longest_unit_to_a_faster_one() -> None:
    driver = one_slow_worker()
    assert list(driver.running) == [1]
    driver.finish(1, 1.0)
    # The other unit is finished: all the rest is done by the fast worker.
    assert list(driver.running) == [1]
    assert driver.planner.idle == (0,)


def test_one_that_waits_takes_over_when_the_faster_one_is_lost() -> None:
    driver = one_slow_worker()
    del driver.running[1]
    driver.send(WorkerLost(1))
    assert list(driver.running) == [0]


def test_a_faster_worker_that_joins_takes_what_was_waiting() -> None:
    driver = one_slow_worker()
    driver.send(WorkerJoined(2))
    assert sorted(driver.running) == [1, 2]


def test_where_no_time_is_told_nobody_waits() -> None:
    assert sorted(one_slow_worker(seconds=0.0).running) == [0, 1]


def test_workers_alike_do_not_wait() -> None:
    driver = Driver(train_shards=5, workers=2, units=2)
    for _ in range(4):
        driver.finish(1, 1.0)
        driver.finish(0, 1.2)
        assert sorted(driver.running) == [0, 1]


def test_trials_that_differ_in_cost_make_no_worker_slow_for_long() -> None:
    # The second unit takes eight times as long, on every worker.
    costs = Costs((1.0, 8.0), (1.0, 1.0), train_shards=8, epochs=2)
    assert simulate(costs).ratio <= 1.05


def blindly(costs: Costs) -> float:
    """The makespan if the planner knows nothing of time: any free worker takes what comes."""
    planner, now, count = Planner(costs.train_shards, max_lag=None), 0.0, 0
    answers: list[tuple[float, int, VisitDone]] = []
    events: list[Event] = [WorkerJoined(worker) for worker in range(len(costs.speeds))]
    for number in range(len(costs.train)):
        start = number % costs.train_shards
        events.append(UnitAdded(Unit(number, (number,), start, costs.epochs)))
    while events or answers:
        if not events:
            now, _, event = heappop(answers)
            events.append(event)
        for instruction in planner.handle(events.pop(0)):
            if isinstance(instruction, Start):
                (unit, epoch, step, phase, _, attempt), _, (worker,) = instruction
                end = now + costs.train[unit] / costs.speeds[worker]
                done = VisitDone(unit, epoch, step, phase, attempt, worker, 0.0)
                count += 1
                heappush(answers, (end, count, done))
    return now


@pytest.mark.parametrize("speeds", [(0.25, 1.0), (1.0, 0.25)])
@pytest.mark.parametrize("units", [2, 3, 4, 8, 16])
@pytest.mark.parametrize(("shards", "epochs"), [(8, 2), (4, 5)])
def test_one_of_two_workers_four_times_slower_does_not_stretch_the_plan(
    units: int, shards: int, epochs: int, speeds: tuple[float, float]
) -> None:
    assert simulate(Costs((1.0,) * units, speeds, shards, 0, epochs)).ratio <= 1.10


@pytest.mark.parametrize(("units", "visits"), [(2, 10), (3, 6), (4, 4)])
@pytest.mark.parametrize("factor", [2.0, 4.0])
def test_short_plans_are_close_to_the_best_of_all(units: int, visits: int, factor: float) -> None:
    # That one knows from the beginning who is slow.
    costs = Costs((1.0,) * units, (1.0, 1.0 / factor), train_shards=visits)
    best = Optimum(costs.train, costs.speeds, visits).seconds
    assert simulate(costs).makespan <= 1.10 * best


def test_knowing_speeds_pays_and_does_no_harm() -> None:
    rng, ratios = random.Random(0), []
    for _ in range(400):
        slow = [rng.uniform(1.5, 8.0) for _ in range(rng.randint(1, 3))]
        speeds = [1.0 / factor for factor in slow] + [1.0] * rng.randint(1, 6)
        units, shards, epochs = rng.randint(0, 12), rng.randint(1, 6), rng.randint(1, 3)
        # No worker is without a visit: nothing would be known of it.
        costs = Costs((1.0,) * (len(speeds) + units), speeds, shards, 0, epochs)
        ratios.append(simulate(costs).makespan / blindly(costs))
    assert sum(ratios) / len(ratios) <= 0.75
    assert max(ratios) <= 1.10


@settings(deadline=None, max_examples=50)
@given(seed=st.integers(0, 1000), away=st.floats(0.1, 0.9))
def test_plans_end_whoever_leaves(seed: int, away: float) -> None:
    rng = random.Random(seed)
    speeds = [rng.choice([1.0, 0.5, 0.2]) for _ in range(4)]
    costs = Costs([rng.uniform(0.5, 2.0) for _ in range(6)], speeds, 4, 2, 2)
    at = away * costs.lower_bound()
    fastest = speeds.index(max(speeds))
    outages = [Outage(fastest, at, back=at * 1.5), Outage((fastest + 1) % 4, at)]
    assert simulate(costs, outages=outages).finished
