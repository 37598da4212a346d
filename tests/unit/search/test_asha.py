"""Asynchronous successive halving, against tables worked out by hand."""

from __future__ import annotations

import pytest

from cerebro.search.asha import Asha, rung_levels
from cerebro.search.decision import Promote, Report, Stop
from cerebro.types import Mode, TrialStatus


def asha(epochs: int = 9, **arguments: object) -> Asha:
    return Asha(metric="acc", mode=Mode.MAX, epochs=epochs, **arguments)  # type: ignore[arg-type]


def acc(trial: int, epochs: int, value: float) -> Report:
    return Report(trial, epochs, 4 * epochs, {"acc": value})


def add(stopper: Asha, count: int) -> list[int | None]:
    return [stopper.added(trial, {}, 0) for trial in range(count)]


@pytest.mark.parametrize(
    ("grace", "eta", "epochs", "levels"),
    [
        (1, 3, 9, (1, 3)),
        (1, 3, 10, (1, 3, 9)),
        (1, 2, 16, (1, 2, 4, 8)),
        (2, 4, 100, (2, 8, 32)),
        (5, 3, 6, (5,)),
    ],
)
def test_rungs_are_below_the_last_epoch(
    grace: int, eta: int, epochs: int, levels: tuple[int, ...]
) -> None:
    assert rung_levels(grace, eta, epochs) == levels


def test_the_best_third_is_promoted_as_results_come() -> None:
    # After each result: how many may be promoted (a third), and who is then.
    table = [
        # trial, value, promoted
        (0, 0.5, []),  # 1 result: 0
        (1, 0.4, []),  # 2: 0
        (2, 0.3, [0]),  # 3: 1, trial 0 is the best
        (3, 0.9, [3]),  # 4: 1, it is the best now; trial 0 is promoted already
        (4, 0.1, []),  # 5: 1
        (5, 0.2, []),  # 6: 2, trials 3 and 0
        (6, 0.6, [6]),  # 7: 2, trials 3 and 6
        (7, 0.45, []),  # 8: 2
        (8, 0.05, []),  # 9: 3, trials 3, 6 and 0
        (9, 0.01, []),  # 10: 3
        (10, 0.02, []),  # 11: 3
        (11, 0.03, [7]),  # 12: 4, trials 3, 6, 0 and 7
    ]
    stopper = asha()
    assert add(stopper, len(table)) == [1] * len(table)
    for trial, value, promoted in table:
        decisions = stopper.evaluated(acc(trial, 1, value))
        assert decisions == [Promote(each, 3) for each in promoted], trial


def test_from_the_last_rung_a_trial_goes_to_the_end() -> None:
    stopper = asha(epochs=8)
    add(stopper, 3)
    for trial in range(3):
        stopper.evaluated(acc(trial, 1, trial / 10))
    told = [stopper.evaluated(acc(trial, 3, trial / 10)) for trial in range(3)]
    assert told == [[], [], [Promote(2, 8)]]


def test_smaller_is_better_where_the_mode_says_so() -> None:
    stopper = Asha(metric="loss", mode=Mode.MIN, epochs=9)
    add(stopper, 3)
    told = [stopper.evaluated(Report(n, 1, 4, {"loss": float(n)})) for n in range(3)]
    assert told == [[], [], [Promote(0, 3)]]


def test_of_equals_the_earlier_trial_is_promoted() -> None:
    stopper = asha()
    add(stopper, 3)
    told = [stopper.evaluated(acc(trial, 1, 0.5)) for trial in (2, 1, 0)]
    assert told == [[], [], [Promote(0, 3)]]


def test_what_is_not_a_number_is_the_worst() -> None:
    stopper = asha()
    add(stopper, 3)
    values = [float("nan"), 0.1, float("inf")]
    told = [stopper.evaluated(acc(trial, 1, value)) for trial, value in enumerate(values)]
    assert told == [[], [], [Promote(1, 3)]]


def test_a_trial_that_failed_has_no_result() -> None:
    stopper = asha()
    add(stopper, 4)
    stopper.ended(0, TrialStatus.DIVERGED)
    told = [stopper.evaluated(acc(trial, 1, 0.1 * trial)) for trial in (1, 2, 3)]
    assert told == [[], [], [Promote(3, 3)]]


def test_a_trial_that_ended_is_not_promoted() -> None:
    stopper = asha()
    add(stopper, 4)
    stopper.evaluated(acc(0, 1, 0.9))
    stopper.ended(0, TrialStatus.STOPPED)
    told = [stopper.evaluated(acc(trial, 1, 0.1 * trial)) for trial in (1, 2, 3)]
    assert told == [[], [], []]


def test_where_nobody_left_a_rung_its_best_goes_on_at_the_end() -> None:
    stopper = asha(epochs=10)
    add(stopper, 2)
    for trial in range(2):
        assert stopper.evaluated(acc(trial, 1, trial / 10)) == []
    assert stopper.exhausted() == [Promote(1, 3)]
    assert stopper.exhausted() == []
    assert stopper.evaluated(acc(1, 3, 0.2)) == []
    assert stopper.exhausted() == [Promote(1, 9)]


def test_at_the_end_the_next_best_takes_the_place_of_one_that_failed() -> None:
    stopper = asha()
    add(stopper, 2)
    for trial in range(2):
        stopper.evaluated(acc(trial, 1, trial / 10))
    assert stopper.exhausted() == [Promote(1, 3)]
    stopper.ended(1, TrialStatus.FAILED)
    assert stopper.exhausted() == [Promote(0, 3)]


def test_a_copy_comes_to_the_next_rung() -> None:
    stopper = asha()
    assert [stopper.added(n, {}, epochs) for n, epochs in enumerate((0, 1, 2, 3))] == [
        1,
        3,
        3,
        None,
    ]


def test_a_trial_that_a_person_let_go_on_is_not_promoted_behind_itself() -> None:
    stopper = asha()
    add(stopper, 3)
    stopper.evaluated(acc(0, 1, 0.9))
    stopper.evaluated(acc(0, 2, 0.9))
    told = [stopper.evaluated(acc(trial, 1, 0.1)) for trial in (1, 2)]
    assert told == [[], []]


def test_brackets_begin_at_later_rungs_and_compare_their_own() -> None:
    stopper = asha(epochs=27, brackets=2)
    assert add(stopper, 6) == [1, 3, 1, 3, 1, 3]
    assert [stopper.evaluated(acc(trial, 1, trial / 10)) for trial in (0, 2, 4)][-1] == [
        Promote(4, 3)
    ]
    assert [stopper.evaluated(acc(trial, 3, trial / 10)) for trial in (4, 1, 3)] == [[], [], []]
    assert stopper.evaluated(acc(5, 3, 0.9)) == [Promote(5, 9)]


def test_as_stop_a_trial_goes_on_only_if_it_is_among_the_best_so_far() -> None:
    # After each result: a third of them, at least one, go on.
    table = [
        # trial, value, its place of how many, goes on
        (0, 0.5, True),  # 1 of 1, best 1
        (1, 0.4, False),  # 2 of 2, best 1
        (2, 0.6, True),  # 1 of 3, best 1
        (3, 0.55, False),  # 2 of 4, best 1
        (4, 0.1, False),  # 5 of 5, best 1
        (5, 0.58, True),  # 2 of 6, best 2
    ]
    stopper = asha(kind="stop")
    assert add(stopper, len(table)) == [None] * len(table)
    for trial, value, goes_on in table:
        decisions = stopper.evaluated(acc(trial, 1, value))
        assert [type(decision) for decision in decisions] == ([] if goes_on else [Stop]), trial


def test_as_stop_the_reason_says_how_it_stood() -> None:
    stopper = asha(kind="stop")
    add(stopper, 2)
    stopper.evaluated(acc(0, 1, 0.5))
    (stop,) = stopper.evaluated(acc(1, 1, 0.4))
    assert stop == Stop(1, "not among the best 1: 2 of 2 results after epoch 1")
