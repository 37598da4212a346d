"""Synchronous halving and Hyperband, against tables worked out by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from cerebro.search.decision import Promote, Report, Stop
from cerebro.search.halving import Halving, Hyperband
from cerebro.types import Mode, TrialStatus


def halving(num_trials: int, epochs: int = 9, eta: int = 3) -> Halving:
    return Halving(metric="acc", mode=Mode.MAX, epochs=epochs, num_trials=num_trials, eta=eta)


def acc(trial: int, epochs: int, value: float) -> Report:
    return Report(trial, epochs, 4 * epochs, {"acc": value})


def add(stopper: Halving | Hyperband, count: int) -> list[int | None]:
    return [stopper.added(trial, {}, 0) for trial in range(count)]


def promoted(decisions: Sequence[object]) -> list[tuple[int, int]]:
    return [(each.trial, each.epochs) for each in decisions if isinstance(each, Promote)]


def stopped(decisions: Sequence[object]) -> list[int]:
    return [each.trial for each in decisions if isinstance(each, Stop)]


def test_nine_trials_become_three_and_one() -> None:
    stopper = halving(9)
    assert add(stopper, 9) == [1] * 9
    for trial in range(8):
        assert stopper.evaluated(acc(trial, 1, trial / 10)) == []
    decisions = stopper.evaluated(acc(8, 1, 0.35))
    # Of 0, 0.1 ... 0.7 and 0.35 the best three are trials 7, 6 and 5.
    assert promoted(decisions) == [(7, 3), (6, 3), (5, 3)]
    assert stopped(decisions) == [4, 8, 3, 2, 1, 0]
    assert decisions[-1] == Stop(0, "not among the best 3 of 9 after epoch 1")
    assert stopper.evaluated(acc(7, 3, 0.1)) == []
    assert stopper.evaluated(acc(6, 3, 0.3)) == []
    decisions = stopper.evaluated(acc(5, 3, 0.2))
    assert (promoted(decisions), stopped(decisions)) == ([(6, 9)], [5, 7])


def test_it_waits_for_trials_that_are_not_there_yet() -> None:
    stopper = halving(3)
    add(stopper, 2)
    assert [stopper.evaluated(acc(trial, 1, 0.5)) for trial in range(2)] == [[], []]
    stopper.added(2, {}, 0)
    assert promoted(stopper.evaluated(acc(2, 1, 0.9))) == [(2, 3)]


def test_a_trial_that_fails_is_not_waited_for() -> None:
    stopper = halving(3)
    add(stopper, 3)
    stopper.evaluated(acc(0, 1, 0.1))
    stopper.evaluated(acc(1, 1, 0.2))
    decisions = stopper.ended(2, TrialStatus.DIVERGED)
    assert (promoted(decisions), stopped(decisions)) == ([(1, 3)], [0])


def test_a_result_of_a_trial_that_ended_does_not_count() -> None:
    stopper = halving(3)
    add(stopper, 3)
    stopper.evaluated(acc(0, 1, 0.9))
    stopper.ended(0, TrialStatus.STOPPED)
    stopper.evaluated(acc(1, 1, 0.2))
    decisions = stopper.evaluated(acc(2, 1, 0.1))
    assert (promoted(decisions), stopped(decisions)) == ([(1, 3)], [2])


def test_at_least_one_goes_on() -> None:
    stopper = halving(2)
    add(stopper, 2)
    stopper.evaluated(acc(0, 1, 0.1))
    assert promoted(stopper.evaluated(acc(1, 1, 0.2))) == [(1, 3)]
    assert promoted(stopper.evaluated(acc(1, 3, 0.2))) == [(1, 9)]


def test_trials_beyond_the_plan_and_copies_take_no_part() -> None:
    stopper = halving(2)
    assert stopper.added(0, {}, 3) is None
    assert [stopper.added(trial, {}, 0) for trial in (1, 2, 3)] == [1, 1, None]
    assert stopper.evaluated(acc(3, 1, 0.9)) == []
    assert stopper.evaluated(acc(0, 1, 0.9)) == []


def test_where_planned_trials_never_come_those_that_are_there_are_compared() -> None:
    stopper = halving(9)
    add(stopper, 4)
    for trial in range(4):
        assert stopper.evaluated(acc(trial, 1, trial / 10)) == []
    decisions = stopper.exhausted()
    assert (promoted(decisions), stopped(decisions)) == ([(3, 3), (2, 3), (1, 3)], [0])


@pytest.mark.parametrize(("value", "goes_on"), [(0.6, True), (0.4, False)])
def test_one_that_comes_late_must_beat_the_last_that_went_on(value: float, goes_on: bool) -> None:
    stopper = halving(3)
    add(stopper, 3)
    stopper.evaluated(acc(0, 1, 0.5))
    stopper.evaluated(acc(1, 1, 0.3))
    # A person holds trial 2, and nothing else is left to do.
    assert promoted(stopper.exhausted()) == [(0, 3)]
    decisions = stopper.evaluated(acc(2, 1, value))
    assert (promoted(decisions), stopped(decisions)) == (([(2, 3)], []) if goes_on else ([], [2]))
    if goes_on:
        assert stopper.evaluated(acc(0, 3, 0.5)) == []
        assert promoted(stopper.evaluated(acc(2, 3, 0.6))) == [(2, 9)]


def test_one_that_a_person_let_go_on_is_not_waited_for() -> None:
    stopper = halving(2)
    add(stopper, 2)
    stopper.evaluated(acc(1, 1, 0.9))
    assert stopper.evaluated(acc(1, 2, 0.9)) == []
    assert promoted(stopper.evaluated(acc(0, 1, 0.5))) == [(0, 3)]


# (trials, epochs at their first rung) of each bracket; the first table is that of the paper.
BRACKETS = {
    (81, 3): [(81, 1), (34, 3), (15, 9), (8, 27), (5, 81)],
    (9, 3): [(9, 1), (5, 3), (3, 9)],
    (8, 2): [(8, 1), (6, 2), (4, 4), (4, 8)],
    (100, 3): [(81, 1), (34, 3), (15, 11), (8, 33), (5, 100)],
    (16, 4): [(16, 1), (6, 4), (3, 16)],
    (2, 3): [(1, 2)],
}


@pytest.mark.parametrize(("epochs", "eta"), BRACKETS)
def test_the_brackets_of_hyperband(epochs: int, eta: int) -> None:
    stopper = Hyperband(metric="acc", mode=Mode.MAX, epochs=epochs, eta=eta)
    expected = BRACKETS[epochs, eta]
    assert stopper.sizes() == expected
    assert stopper.num_trials == sum(count for count, _ in expected)
    firsts = [None if first == epochs else first for count, first in expected for _ in range(count)]
    # The round begins anew after the last.
    assert add(stopper, len(firsts) + 1) == [*firsts, firsts[0]]


def test_a_bracket_of_hyperband_is_halved_as_in_the_paper() -> None:
    stopper = Hyperband(metric="acc", mode=Mode.MAX, epochs=81)
    add(stopper, 143)
    # The second bracket: 34 trials at 3 epochs, 11 at 9, 3 at 27, 1 at 81.
    live = list(range(81, 81 + 34))
    for level, target, count in ((3, 9, 11), (9, 27, 3), (27, 81, 1)):
        decisions = [each for n in live for each in stopper.evaluated(acc(n, level, n / 1000))]
        live = [trial for trial, epochs in promoted(decisions) if epochs == target]
        assert live == sorted(live, reverse=True)
        assert len(live) == count
        assert len(decisions) == len(live) + len(stopped(decisions))


def test_brackets_do_not_wait_for_each_other() -> None:
    stopper = Hyperband(metric="acc", mode=Mode.MAX, epochs=9)
    add(stopper, 17)
    told = [stopper.evaluated(acc(trial, 3, trial / 100)) for trial in range(9, 14)]
    assert promoted(told[-1]) == [(13, 9)]
