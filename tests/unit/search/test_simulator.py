"""Whole searches in simulated time."""

from __future__ import annotations

from collections import Counter
from itertools import pairwise

import pytest

from cerebro.search.conductor import Conductor
from cerebro.search.curves import power_law, recorded
from cerebro.search.sampler import RandomSampler
from cerebro.search.simulator import SearchSimulation, simulate_search
from cerebro.search.stoppers import make_stopper
from cerebro.types import Mode, TrialStatus
from tests.unit.search.playing import SPACE


def search(stopper: object, trials: int, epochs: int, **arguments: object) -> Conductor:
    made = make_stopper(
        stopper,
        metric="val_loss",
        mode=Mode.MIN,
        epochs=epochs,
        num_trials=trials,
        space=SPACE,
    )
    options = {"concurrent": None, "objectives": [("val_loss", Mode.MIN)], **arguments}
    sampler = RandomSampler(SPACE, seed=0, num_trials=trials)
    return Conductor(sampler, made, epochs=epochs, **options)  # type: ignore[arg-type]


def simulated(
    conductor: Conductor, workers: int, shards: int = 2, **arguments: object
) -> SearchSimulation:
    options = {"curve": power_law(0), "visit_s": 1.0, "train_shards": shards, **arguments}
    return simulate_search(conductor, workers=workers, **options)  # type: ignore[arg-type]


def test_a_search_without_a_stopper_takes_what_its_visits_take() -> None:
    result = simulated(search(None, 4, 3), workers=2, shards=5, val_shards=2, eval_s=0.5)
    # 4 trials x 3 epochs x (5 visits of 1 s and 2 of 0.5 s) on 2 workers.
    assert result.makespan_s == pytest.approx(36.0)
    assert result.busy == (1.0, 1.0)
    assert result.epochs == 12
    assert Counter(result.statuses.values()) == {TrialStatus.FINISHED: 4}


def test_promotions_against_a_table() -> None:
    # Losses after 1 and 2 epochs of 4 trials, one after another on one worker, eta 2.
    table = [(0.4, 0.3, 0.2), (0.5, 0.45, 0.4), (0.3, 0.35, 0.1), (0.9, 0.8, 0.7)]
    curve = recorded({n: [{"val_loss": value} for value in row] for n, row in enumerate(table)})
    conductor = search({"name": "asha", "eta": 2}, 4, 3, concurrent=1)
    result = simulated(conductor, workers=1, shards=1, curve=curve)
    # t0 and t1 report; t0 is the better half and goes to 2, where it waits. Then t2 (best: goes to
    # 2, where t0 is better than it and goes to the end), t3 (the better half is t2 and t0).
    assert result.promotions == {1: 2, 2: 1}
    assert result.epochs_of == {0: 3, 1: 1, 2: 2, 3: 1}
    assert result.statuses == {
        **dict.fromkeys((1, 2, 3), TrialStatus.STOPPED),
        0: TrialStatus.FINISHED,
    }
    assert result.leaderboard == ((0, 0.2), (2, 0.3), (1, 0.5), (3, 0.9))
    assert result.epochs == 7
    first = result.first_to(lambda value: value <= 0.3)
    assert first is not None
    assert (first.time_s, first.epochs, first.trial) == (3.0, 3, 0)


def test_a_thousand_trials_keep_a_hundred_workers_busy() -> None:
    result = simulated(
        search("asha", 1000, 27, concurrent=100),
        workers=100,
        shards=4,
        visit_s=lambda trial: 1.0 + trial % 7 / 7,
    )
    # While there is something to propose; after that the last trials are chains of visits.
    assert result.busy_while_proposing >= 0.95
    assert all(status.is_final for status in result.statuses.values())
    assert len(result.statuses) == 1000
    counts = [1000, *(result.promotions[level] for level in (1, 3, 9))]
    for some, fewer in pairwise(counts):
        # A third, and what was promoted before better ones came.
        assert some // 3 <= fewer <= some // 2


def test_halving_promotes_exactly_its_share() -> None:
    result = simulated(search("halving", 81, 27), workers=8)
    assert result.promotions == {1: 27, 3: 9, 9: 3}
    assert result.epochs == 81 + 27 * 2 + 9 * 6 + 3 * 18


def test_fewer_epochs_find_what_all_of_them_find() -> None:
    everything = simulated(search(None, 100, 27), workers=10)
    asha = simulated(search("asha", 100, 27, concurrent=10), workers=10)
    best = [trial for trial, _ in everything.leaderboard[:5]]
    assert asha.leaderboard[0][0] in best
    assert asha.epochs < everything.epochs / 4


def test_a_goal_ends_the_run() -> None:
    result = simulated(search({"name": "goal", "target": 0.5}, 20, 9), workers=4)
    assert result.halted is not None
    assert result.incumbents[-1].value <= 0.5
    assert result.first_to(lambda value: value <= 0.5) == result.incumbents[-1]
    assert set(result.statuses.values()) <= {TrialStatus.STOPPED, TrialStatus.FINISHED}


def test_a_budget_is_used_to_its_last_epoch() -> None:
    result = simulated(search("asha", 100, 27, concurrent=8, max_epochs=77), workers=4)
    assert result.halted == "the budget of 77 epochs is used up"
    assert result.epochs == 77


def test_trials_that_fail_are_not_waited_for() -> None:
    def failure(trial: int, epochs: int) -> TrialStatus | None:
        return TrialStatus.DIVERGED if trial % 3 == 0 else None

    result = simulated(search("halving", 9, 9), workers=2, failure=failure)
    assert Counter(result.statuses.values()) == {
        **{TrialStatus.DIVERGED: 3, TrialStatus.STOPPED: 5, TrialStatus.FINISHED: 1}
    }


def test_a_population_goes_on_as_copies() -> None:
    result = simulated(search({"name": "pbt", "interval": 2}, 8, 8), workers=4)
    assert result.sources
    assert Counter(result.statuses.values())[TrialStatus.FINISHED] == 8
    for clone, source in result.sources.items():
        assert clone > source


def test_the_same_search_gives_the_same_result() -> None:
    one, other = (simulated(search("asha", 50, 9, concurrent=7), workers=5) for _ in range(2))
    assert one == other
