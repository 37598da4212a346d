"""The median rule, against a table worked out by hand."""

from __future__ import annotations

from cerebro.search.decision import Promote, Report, Stop
from cerebro.search.median import Median
from cerebro.types import Mode, TrialStatus


def loss(trial: int, epochs: int, value: float) -> Report:
    return Report(trial, epochs, 4 * epochs, {"loss": value})


def median(trials: int, **arguments: int) -> Median:
    stopper = Median(metric="loss", mode=Mode.MIN, epochs=9, **arguments)
    grace = arguments.get("grace", 1)
    assert [stopper.added(trial, {}, 0) for trial in range(trials)] == [grace] * trials
    return stopper


def goes_on(trial: int, epochs: int) -> list[Promote]:
    return [Promote(trial, epochs + 1)]


def test_a_trial_worse_than_the_median_of_running_means_is_stopped() -> None:
    stopper = median(5)
    # Losses after 1 and 2 epochs, and the running means then.
    for trial, losses in enumerate([(0.8, 0.6), (0.9, 0.7), (1.0, 0.4)]):
        for epochs, value in enumerate(losses, 1):
            assert stopper.evaluated(loss(trial, epochs, value)) == goes_on(trial, epochs)
    # After 1 epoch the means are 0.8, 0.9, 1.0; after 2 they are 0.7, 0.8, 0.7.
    assert stopper.evaluated(loss(3, 1, 0.9)) == goes_on(3, 1)
    assert stopper.evaluated(loss(3, 2, 0.75)) == [
        Stop(3, "best loss 0.75 after epoch 2 is worse than the median loss 0.7 of 3 trials")
    ]
    # Of 0.8, 0.9, 0.9 and 1.0 the worse of the two in the middle counts.
    assert stopper.evaluated(loss(4, 1, 0.9)) == goes_on(4, 1)


def test_the_best_so_far_counts_not_the_last() -> None:
    stopper = median(2, min_trials=1)
    for epochs, value in enumerate((0.5, 0.5), 1):
        stopper.evaluated(loss(0, epochs, value))
    stopper.evaluated(loss(1, 1, 0.4))
    assert stopper.evaluated(loss(1, 2, 0.9)) == goes_on(1, 2)


def test_every_trial_gets_its_grace() -> None:
    stopper = median(2, min_trials=1, grace=2)
    for epochs in (1, 2):
        stopper.evaluated(loss(0, epochs, 0.1))
    assert stopper.evaluated(loss(1, 1, 0.9)) == []
    assert isinstance(stopper.evaluated(loss(1, 2, 0.9))[0], Stop)


def test_too_few_others_are_no_measure() -> None:
    stopper = median(3)
    told = [stopper.evaluated(loss(trial, 1, trial)) for trial in range(3)]
    assert told == [goes_on(trial, 1) for trial in range(3)]


def test_results_of_trials_that_ended_count() -> None:
    stopper = median(2, min_trials=1)
    stopper.evaluated(loss(0, 1, 0.1))
    stopper.ended(0, TrialStatus.FAILED)
    assert isinstance(stopper.evaluated(loss(1, 1, 0.9))[0], Stop)


def test_nobody_is_stopped_at_the_end() -> None:
    stopper = median(2, min_trials=1)
    stopper.evaluated(loss(0, 9, 0.1))
    assert stopper.evaluated(loss(1, 9, 0.9)) == []
