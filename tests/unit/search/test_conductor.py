"""What a search does next, step by step."""

from __future__ import annotations

import math

import pytest

from cerebro.errors import UsageError
from cerebro.search.asha import Asha
from cerebro.search.conductor import Action, Conductor, Propose
from cerebro.search.decision import Decision, Halt, Outcome, Pause, Promote, Report, Stop
from cerebro.search.halving import Halving
from cerebro.search.stopper import Endless, Stopper
from cerebro.search.stoppers import make_goal
from cerebro.types import Mode, TrialStatus
from tests.unit.search.playing import ListSampler

FINISHED, STOPPED = TrialStatus.FINISHED, TrialStatus.STOPPED
LOSS = [("loss", Mode.MIN)]


def listed(count: int) -> ListSampler:
    return ListSampler([{"n": number} for number in range(count)])


def begun(
    trials: int | ListSampler, stopper: Stopper | None = None, epochs: int = 4, **arguments: object
) -> Conductor:
    """A search whose first proposals were added as trials of the same numbers."""
    sampler = listed(trials) if isinstance(trials, int) else trials
    options = {"concurrent": None, "objectives": LOSS, **arguments}
    conductor = Conductor(sampler, stopper or Endless(), epochs=epochs, **options)  # type: ignore[arg-type]
    accept(conductor, conductor.begin())
    return conductor


def accept(conductor: Conductor, actions: list[Action]) -> list[Action]:
    """Make trials of proposals, numbered like them; what else is to be done."""
    others: list[Action] = []
    while actions:
        action = actions.pop(0)
        if isinstance(action, Propose):
            added = conductor.added(action.proposal, action.params, 0, action.proposal)
            actions += added
        else:
            others.append(action)
    return others


def loss(trial: int, epochs: int, value: float = 0.5) -> Report:
    return Report(trial, epochs, 4 * epochs, {"loss": value})


def asha() -> Asha:
    return Asha(metric="loss", mode=Mode.MIN, epochs=4, eta=2, grace=1)


def test_without_a_limit_all_are_proposed_at_once_and_go_to_the_end() -> None:
    conductor = Conductor(listed(2), Endless(), epochs=4, concurrent=None, objectives=LOSS)
    assert conductor.begin() == [Propose(0, 0, {"n": 0}), Propose(1, 0, {"n": 1})]
    assert conductor.added(0, {"n": 0}, 0, 0) == [Promote(0, 4)]
    assert conductor.added(1, {"n": 1}, 0, 1) == [Promote(1, 4)]
    assert conductor.evaluated(loss(0, 4)) == []
    assert conductor.ended(0, FINISHED) == []
    assert not conductor.is_over
    assert conductor.ended(1, TrialStatus.FAILED) == []
    assert conductor.is_over


def test_one_that_waits_makes_room_and_one_that_is_promoted_takes_it() -> None:
    conductor = Conductor(listed(9), asha(), epochs=4, concurrent=1, objectives=LOSS)
    assert conductor.begin() == [Propose(0, 0, {"n": 0})]
    assert conductor.added(0, {"n": 0}, 0, 0) == [Promote(0, 1)]
    assert conductor.evaluated(loss(0, 1, 0.5)) == [Propose(1, 0, {"n": 1})]
    assert conductor.added(1, {"n": 1}, 0, 1) == [Promote(1, 1)]
    # Trial 0 is the better half of two now.
    assert conductor.evaluated(loss(1, 1, 0.6)) == [Promote(0, 2)]
    assert conductor.evaluated(loss(0, 2, 0.4)) == [Propose(2, 0, {"n": 2})]


def test_what_still_waits_in_the_end_is_stopped() -> None:
    conductor = begun(2, asha())
    assert conductor.evaluated(loss(0, 1, 0.5)) == []
    assert conductor.evaluated(loss(1, 1, 0.6)) == [Promote(0, 2)]
    # Nobody else comes to the rung at 2 epochs: the only one there goes on.
    assert conductor.evaluated(loss(0, 2, 0.4)) == [Promote(0, 4)]
    assert conductor.evaluated(loss(0, 4, 0.3)) == []
    assert conductor.ended(0, FINISHED) == [Stop(1, "not promoted beyond epoch 1")]
    assert not conductor.is_over
    assert conductor.ended(1, STOPPED) == []
    assert conductor.is_over


def test_trials_that_a_budget_does_not_allow_are_not_waited_for() -> None:
    stopper = Halving(metric="loss", mode=Mode.MIN, epochs=4, num_trials=9, eta=2)
    conductor = begun(9, stopper, max_trials=2)
    assert conductor.evaluated(loss(0, 1, 0.5)) == []
    assert conductor.evaluated(loss(1, 1, 0.6)) == [Promote(0, 2), Promote(1, 2)]


def test_a_report_that_comes_again_changes_nothing() -> None:
    conductor = begun(2, asha())
    conductor.evaluated(loss(0, 1, 0.5))
    promoted = conductor.evaluated(loss(1, 1, 0.6))
    assert promoted == [Promote(0, 2)]
    assert conductor.visited(Report(0, 1, 5, {})) == []
    for again in (loss(0, 1, 0.1), loss(1, 1, 0.1)):
        assert conductor.evaluated(again) == []
    assert conductor.visited(Report(0, 1, 5, {})) == []


def test_one_that_ended_is_of_no_concern() -> None:
    conductor = begun(2, asha())
    conductor.ended(0, TrialStatus.FAILED)
    assert conductor.evaluated(loss(0, 1)) == []
    assert conductor.visited(Report(0, 0, 1, {})) == []
    assert conductor.ended(0, STOPPED) == []


def test_a_trial_must_be_added_first() -> None:
    with pytest.raises(ValueError, match="must be added before"):
        begun(1).evaluated(loss(7, 1))


def test_a_trial_is_added_once() -> None:
    conductor = begun(1)
    assert conductor.added(0, {"n": 0}, 0, 0) == []


# Budgets


def test_a_budget_of_epochs_is_granted_until_it_is_used_up() -> None:
    conductor = Conductor(
        listed(9), Endless(), epochs=4, concurrent=None, objectives=LOSS, max_epochs=10
    )
    # One by one: what the next may have is known once this one has its share.
    assert conductor.begin() == [Propose(0, 0, {"n": 0})]
    told = [conductor.added(number, {"n": number}, 0, number) for number in range(3)]
    assert told == [
        [Promote(0, 4), Propose(1, 0, {"n": 1})],
        [Promote(1, 4), Propose(2, 0, {"n": 2})],
        [Promote(2, 2)],
    ]
    for trial, epochs in ((0, 4), (1, 4)):
        assert conductor.evaluated(loss(trial, epochs)) == []
        assert conductor.ended(trial, FINISHED) == []
    assert conductor.evaluated(loss(2, 2)) == [Halt("the budget of 10 epochs is used up")]
    assert conductor.is_over
    assert conductor.ended(2, STOPPED) == []


def test_what_a_trial_has_not_begun_goes_back() -> None:
    conductor = begun(2, max_epochs=5)
    conductor.evaluated(loss(1, 1))
    conductor.evaluated(loss(0, 1))
    conductor.visited(Report(0, 1, 5, {}))
    # Trial 1 has used its one epoch and waits; trial 0 has begun two of its four.
    assert conductor.ended(0, TrialStatus.DIVERGED) == [Promote(1, 3)]


def test_a_budget_that_is_enough_ends_nothing() -> None:
    conductor = begun(2, max_epochs=8)
    for trial in range(2):
        conductor.evaluated(loss(trial, 4))
        assert conductor.ended(trial, FINISHED) == []
    assert conductor.is_over


def test_a_budget_ends_trials_that_wait_for_a_promotion() -> None:
    conductor = begun(2, asha(), max_epochs=2)
    conductor.evaluated(loss(0, 1, 0.5))
    assert conductor.evaluated(loss(1, 1, 0.6)) == [Halt("the budget of 2 epochs is used up")]


def test_a_number_of_trials_is_not_exceeded() -> None:
    actions = Conductor(
        listed(9), Endless(), epochs=4, concurrent=None, objectives=LOSS, max_trials=3
    ).begin()
    assert [action.proposal for action in actions if isinstance(action, Propose)] == [0, 1, 2]


# Repeats


def test_every_proposal_is_repeated_and_told_with_the_mean() -> None:
    sampler = listed(2)
    options = {"epochs": 4, "objectives": LOSS, "repeats": 2, "max_trials": 3}
    conductor = Conductor(sampler, Endless(), concurrent=None, **options)  # type: ignore[arg-type]
    # A second proposal would need two more.
    assert conductor.begin() == [Propose(0, 0, {"n": 0}), Propose(0, 1, {"n": 0})]
    for repeat in range(2):
        conductor.added(repeat, {"n": 0}, 0, 0, repeat)
        conductor.evaluated(loss(repeat, 4, repeat + 1.0))
    conductor.ended(0, FINISHED)
    assert sampler.told == []
    conductor.ended(1, FINISHED)
    assert sampler.told == [(0, Outcome((1.5,), FINISHED))]


def test_a_proposal_fails_with_one_of_its_repeats() -> None:
    sampler = listed(1)
    conductor = Conductor(sampler, Endless(), epochs=4, concurrent=None, objectives=LOSS, repeats=2)
    conductor.begin()
    for repeat, status in enumerate((FINISHED, TrialStatus.DIVERGED)):
        conductor.added(repeat, {"n": 0}, 0, 0, repeat)
        conductor.evaluated(loss(repeat, 1))
        conductor.ended(repeat, status)
    assert sampler.told == [(0, Outcome(None, TrialStatus.DIVERGED))]


def test_repeats_cannot_be_weighed_against_each_other() -> None:
    with pytest.raises(UsageError, match="`repeats == 1` must hold with stopper 'asha'"):
        begun(2, asha(), repeats=2)
    begun(2, make_goal({"target": 0.1}, metric="loss", mode=Mode.MIN), repeats=2)


# What the sampler hears


def test_the_sampler_hears_of_the_best_epoch() -> None:
    sampler = listed(1)
    objectives = [("acc", Mode.MAX), ("loss", Mode.MIN)]
    conductor = begun(sampler, objectives=objectives, constraints=[("ms", 5.0), ("mb", 1.0)])
    rows = [(0.5, 0.9, 4.0), (0.8, 0.7, 7.0), (0.7, 0.1, 4.0), (math.nan, 0.0, 4.0)]
    for epochs, (acc, value, ms) in enumerate(rows, 1):
        conductor.evaluated(Report(0, epochs, epochs, {"acc": acc, "loss": value, "ms": ms}))
    conductor.ended(0, FINISHED)
    assert sampler.told == [(0, Outcome((0.8, 0.7), FINISHED, (2.0, math.inf)))]


def test_the_sampler_hears_when_a_trial_starts_to_wait() -> None:
    sampler = listed(2)
    conductor = begun(sampler, asha())
    conductor.evaluated(loss(0, 1, 0.5))
    assert sampler.told == [(0, Outcome((0.5,), TrialStatus.PAUSED))]
    conductor.ended(0, STOPPED)
    assert sampler.told[1:] == [(0, Outcome((0.5,), STOPPED))]


def test_the_sampler_hears_of_a_failure_without_a_value() -> None:
    sampler = listed(1)
    conductor = begun(sampler)
    conductor.evaluated(loss(0, 1, 0.5))
    conductor.ended(0, TrialStatus.OUT_OF_MEMORY)
    assert sampler.told == [(0, Outcome(None, TrialStatus.OUT_OF_MEMORY))]


# People


def test_a_trial_that_a_person_holds_makes_room_and_is_not_ended() -> None:
    conductor = begun(2, concurrent=1)
    assert conductor.paused(0) == [Propose(1, 0, {"n": 1})]
    accept(conductor, [Propose(1, 0, {"n": 1})])
    assert conductor.ended(1, FINISHED) == []
    assert conductor.is_over
    assert conductor.resumed(0) == []
    assert not conductor.is_over


def test_a_person_lets_one_that_waits_go_on_to_its_end() -> None:
    conductor = begun(3, asha())
    conductor.evaluated(loss(0, 1))
    assert conductor.resumed(0) == [Promote(0, 4)]


def test_a_person_adds_trials_and_they_take_room() -> None:
    conductor = begun(2, concurrent=2)
    assert conductor.added(7, {"n": 9}, 0, None) == [Promote(7, 4)]
    assert conductor.ended(0, FINISHED) == []
    assert conductor.ended(1, FINISHED) == []
    assert not conductor.is_over
    assert conductor.ended(7, FINISHED) == []
    assert conductor.is_over


def test_a_copy_goes_beyond_the_epochs_of_a_run_whatever_the_budget() -> None:
    conductor = begun(1, epochs=3, max_epochs=3)
    conductor.extended(0, 5)
    conductor.evaluated(loss(0, 1))
    assert conductor.paused(0) == []
    assert conductor.added(1, {"n": 0}, 1, None, 0, 5) == []
    assert conductor.paused(1) == []
    conductor.resumed(1)
    assert conductor.evaluated(loss(1, 4)) == []
    assert not conductor.is_over


def test_what_a_copy_begins_with_is_not_charged_to_the_budget() -> None:
    conductor = begun(3, concurrent=1, max_epochs=12)
    assert conductor.added(9, {"n": 0}, 20, None, 0, 20) == []
    conductor.ended(9, FINISHED)
    conductor.evaluated(loss(0, 4))
    for number in (1, 2):
        assert conductor.ended(number - 1, FINISHED) == [Propose(number, 0, {"n": number})]
        assert conductor.added(number, {"n": number}, 0, number) == [Promote(number, 4)]
        conductor.evaluated(loss(number, 4))


def test_a_person_lets_a_finished_trial_train_on_whatever_the_budget() -> None:
    conductor = begun(1, max_epochs=4)
    conductor.evaluated(loss(0, 4))
    conductor.ended(0, FINISHED)
    assert conductor.extended(0, 6) == [Promote(0, 6)]
    assert not conductor.is_over
    assert conductor.evaluated(loss(0, 5)) == []
    assert conductor.evaluated(loss(0, 6)) == []
    assert conductor.ended(0, FINISHED) == []
    assert conductor.is_over


def test_a_copy_goes_on_from_where_its_source_was() -> None:
    conductor = begun(1)
    conductor.evaluated(loss(0, 3))
    assert conductor.added(1, {"n": 5}, 3, None) == [Promote(1, 4)]
    # One with nothing left to train is under way until its end is told.
    assert conductor.added(2, {"n": 5}, 4, None) == []
    conductor.ended(0, FINISHED)
    conductor.ended(1, FINISHED)
    assert not conductor.is_over
    assert conductor.ended(2, FINISHED) == []
    assert conductor.is_over


# Decisions of stoppers


class Scripted(Endless):
    """Decides what it is told to."""

    def __init__(self, decisions: list[Decision]) -> None:
        self.decisions = decisions

    def visited(self, report: Report) -> list[Decision]:
        return self.decisions


def test_a_trial_that_its_stopper_holds_goes_on_when_it_is_promoted() -> None:
    stopper = Scripted([Pause(0, "why not")])
    conductor = begun(3, stopper, concurrent=1)
    assert conductor.visited(Report(0, 0, 1, {})) == [Pause(0, "why not"), Propose(1, 0, {"n": 1})]
    accept(conductor, [Propose(1, 0, {"n": 1})])
    stopper.decisions = [Promote(0, 4)]
    assert conductor.visited(Report(1, 0, 1, {})) == [Promote(0, 4)]


def test_decisions_about_trials_that_are_leaving_have_no_effect() -> None:
    stopper = Scripted([Stop(0, "bad"), Stop(0, "worse"), Promote(0, 9), Halt("all"), Stop(1, "")])
    conductor = begun(2, stopper)
    assert conductor.visited(Report(1, 0, 1, {})) == [Stop(0, "bad"), Halt("all")]


def test_after_the_end_of_the_run_nothing_is_decided() -> None:
    stopper = Scripted([Halt("enough")])
    conductor = begun(3, stopper, concurrent=1)
    assert conductor.visited(Report(0, 0, 1, {})) == [Halt("enough")]
    assert conductor.ended(0, STOPPED) == []
    assert conductor.is_over


# Arguments


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"epochs": 0}, "`epochs >= 1` must hold"),
        ({"concurrent": 0}, "`concurrent >= 1` must hold, but got concurrent=0"),
        ({"max_trials": 0}, "`max_trials >= 1` must hold"),
        ({"max_epochs": 0}, "`max_epochs >= 1` must hold"),
        ({"repeats": 0}, "`repeats >= 1` must hold"),
        ({"objectives": []}, "at least one objective"),
    ],
)
def test_wrong_arguments_are_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        begun(1, **arguments)  # type: ignore[arg-type]


def test_something_must_bound_a_search() -> None:
    sampler = listed(1)
    sampler.num_trials = None
    with pytest.raises(UsageError, match="needs num_trials, max_trials"):
        begun(sampler)
