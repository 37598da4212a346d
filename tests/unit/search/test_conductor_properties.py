"""Whatever happens, in whatever order: no trial is lost, no budget passed, every replay agrees."""

from __future__ import annotations

import os
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from cerebro.search.conductor import Conductor
from cerebro.search.decision import Promote
from cerebro.search.stoppers import make_stopper
from cerebro.types import Mode
from tests.unit.search.playing import SPACE, Play, sampler

STOPPERS: list[object] = [
    None,
    "asha",
    {"name": "asha", "eta": 2, "brackets": 2},
    {"name": "asha", "kind": "stop"},
    {"name": "halving", "eta": 2},
    "hyperband",
    {"name": "median", "min_trials": 2},
    {"name": "patience", "patience": 2},
    {"name": "pbt", "interval": 2},
    {"name": "goal", "target": 0.01},
    [{"name": "asha", "eta": 2}, {"name": "patience", "patience": 2}],
    [{"name": "halving", "eta": 2}, {"name": "pbt", "interval": 3}],
]

EXAMPLES = settings(max_examples=int(os.environ.get("CEREBRO_EXAMPLES", "100")) * 2, deadline=None)
SEARCHES = st.fixed_dictionaries(
    {
        "stopper": st.sampled_from(STOPPERS),
        "trials": st.integers(1, 20),
        "epochs": st.integers(4, 10),
        "concurrent": st.none() | st.integers(1, 6),
        "max_epochs": st.none() | st.integers(1, 80),
        "max_trials": st.none() | st.integers(1, 25),
        "repeats": st.sampled_from([1, 1, 3]),
    }
)


def conductor(search: dict[str, Any]) -> Conductor:
    limits = {name: search[name] for name in ("concurrent", "max_epochs", "max_trials")}
    trials, epochs = int(str(search["trials"])), int(str(search["epochs"]))
    stopper = make_stopper(
        search["stopper"],
        metric="val_loss",
        mode=Mode.MIN,
        epochs=epochs,
        num_trials=trials,
        space=SPACE,
    )
    repeats = 1 if stopper.is_comparing else search["repeats"]
    return Conductor(
        sampler(trials),
        stopper,
        epochs=epochs,
        objectives=[("val_loss", Mode.MIN)],
        repeats=repeats,
        **limits,
    )


def played(search: dict[str, Any], seed: int, *, people: bool) -> Play:
    play = Play(conductor(search), seed, people=people)
    play.run()
    return play


@EXAMPLES
@given(SEARCHES, st.integers(0, 10**6), st.booleans())
def test_every_trial_ends_or_the_run_does(search: dict[str, Any], seed: int, people: bool) -> None:
    play = played(search, seed, people=people)
    assert play.conductor.is_over
    if play.halted is None:
        assert all(trial.status is not None for trial in play.trials)


@EXAMPLES
@given(SEARCHES, st.integers(0, 10**6), st.booleans())
def test_nothing_is_trained_past_its_target_or_the_budget(
    search: dict[str, Any], seed: int, people: bool
) -> None:
    play = played(search, seed, people=people)
    budget = search["max_epochs"]
    assert budget is None or play.num_epochs <= int(str(budget))
    assert all(trial.epochs <= play.conductor.epochs for trial in play.trials)
    for answer in play.answers:
        targets = [action.epochs for action in answer if isinstance(action, Promote)]
        assert all(target <= play.conductor.epochs for target in targets)


@EXAMPLES
@given(SEARCHES, st.integers(0, 10**6), st.booleans())
def test_a_replay_gives_the_same_actions(search: dict[str, Any], seed: int, people: bool) -> None:
    play = played(search, seed, people=people)
    again = conductor(search)
    for (name, arguments), answer in zip(play.inputs, play.answers, strict=True):
        assert getattr(again, name)(*arguments) == answer
    assert again.is_over


@EXAMPLES
@given(SEARCHES, st.integers(0, 10**6))
def test_no_more_are_under_way_than_allowed(search: dict[str, Any], seed: int) -> None:
    play = played({**search, "stopper": None}, seed, people=False)
    most = search["concurrent"]
    assert most is None or play.most_under_way <= int(str(most))
    most = search["max_trials"]
    assert most is None or len(play.trials) <= int(str(most))


@EXAMPLES
@given(SEARCHES, st.integers(0, 10**6))
def test_a_used_up_budget_leaves_nothing_over(search: dict[str, Any], seed: int) -> None:
    play = played({**search, "stopper": None, "max_epochs": 20}, seed, people=False)
    if play.halted is not None:
        # Epochs that were begun by trials that failed count too.
        failed = sum(
            trial.status is not None and trial.epochs < trial.target for trial in play.trials
        )
        assert 20 - failed <= play.num_epochs <= 20
