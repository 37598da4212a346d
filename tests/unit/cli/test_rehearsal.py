from __future__ import annotations

from cerebro.cli.rehearsal import describe_rungs
from cerebro.run.rehearsal import drawn_from, made_up
from cerebro.types import Mode


def test_a_trial_that_was_recorded_has_its_own_curve_and_others_have_one_of_those():
    table = {
        '{"lr": 0.1}': [{"loss": 0.5}, {"loss": 0.4}],
        '{"lr": 0.2}': [{"loss": 0.9}],
    }
    curve = drawn_from(table)
    assert curve(5, {"lr": 0.1}, 2) == {"loss": 0.4}
    assert curve(0, {"lr": 0.2}, 7) == {"loss": 0.9}
    drawn = {curve(n, {"lr": n}, 1)["loss"] for n in range(1, 30)}
    assert drawn == {0.5, 0.9}
    assert curve(3, {"lr": 7}, 1) == curve(8, {"lr": 7}, 1)


def test_made_up_curves_get_better_whatever_better_means():
    curve = made_up(["accuracy", "loss"], [Mode.MAX, Mode.MIN], seed=0)
    first, last = curve(0, {"lr": 0.1}, 1), curve(0, {"lr": 0.1}, 50)
    assert last["accuracy"] > first["accuracy"]
    assert last["loss"] < first["loss"]


def test_of_many_rungs_the_first_and_last_are_told():
    told = describe_rungs(range(1, 101))
    assert told == (
        "trials that come to epoch 1: 100, 2: 99, 3: 98, 4: 97, …, 97: 4, 98: 3, 99: 2, 100: 1"
    )
