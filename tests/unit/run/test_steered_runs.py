"""Commands that come at a certain visit, alone and in stacks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from cerebro.backend import InlineBackend
from cerebro.backend.base import Done, Event
from cerebro.results import Result
from cerebro.run.spec import Checkpointing
from cerebro.search.domain import LogUniform
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.history import check
from tests.experiments import fit_toy, make_toy_data, toy_spec

SPACE = {"lr": [0.5, 0.2, 0.1, 0.05]}


class Meddling(InlineBackend):
    """Somebody sends commands once so many visits are done."""

    def __init__(self, root: Path, plan: dict[int, list[dict[str, Any]]]) -> None:
        super().__init__()
        self._inbox = root / "inbox"
        self._plan = dict(plan)
        self._visits = 0

    def events(self) -> list[Event]:
        found = super().events()
        self._visits += sum(isinstance(event, Done) for event in found)
        for after in [number for number in self._plan if number <= self._visits]:
            self._inbox.mkdir(parents=True, exist_ok=True)
            for place, command in enumerate(self._plan.pop(after)):
                (self._inbox / f"{after:04}-{place}.json").write_text(json.dumps(command))
        return found


@pytest.fixture
def data(tmp_path: Path) -> Path:
    make_toy_data(tmp_path / "data", shards=4, rows=160)
    return tmp_path / "data"


def steered(data: Path, name: str, plan: dict[int, Any], workers: int = 1, **changes: Any) -> Any:
    root = data.parent / name
    keep_top = changes.pop("keep_top", None)
    space = changes.pop("space", SPACE)
    spec = toy_spec(data, space, **{"epochs": 3, "stack": False, **changes})
    fit_toy(root, spec, backend=Meddling(root, plan), workers=workers, keep_top=keep_top)
    check(root)
    return Result.open(root)


def send(root: Path, asked: dict[str, Any]) -> None:
    (root / "inbox").mkdir(exist_ok=True)
    (root / "inbox" / "1.json").write_text(json.dumps(asked))


def refused(root: Path) -> list[str | None]:
    """Of each command why it was refused, as far as a line goes."""
    records = read(DirectoryStore(root)).records
    found = [record["refused"] for record in records if record["type"] == "command"]
    return [None if why is None else str(why)[:40] for why in found]


def command(verb: str, trial: int, **more: Any) -> dict[str, Any]:
    return {"command": verb, "trial": trial, **more}


def statuses(result: Any) -> list[str]:
    return [str(trial.status) for trial in result.trials]


@pytest.mark.parametrize("checkpoint", [Checkpointing.VISIT, Checkpointing.EPOCH])
@pytest.mark.parametrize("after", [1, 2, 5, 9])
def test_a_trial_that_waited_is_as_if_it_had_not(data, after, checkpoint):
    plan = {after: [command("pause", 2)], after + 4: [command("unpause", 2)]}
    paused = steered(data, "paused", plan, checkpoint=checkpoint)
    whole = steered(data, "whole", {}, checkpoint=checkpoint)
    assert paused.digest() == whole.digest()


@pytest.mark.parametrize("after", [1, 2, 3, 4, 6])
@pytest.mark.parametrize("later", [1, 2, 5])
def test_so_is_one_of_a_stack_but_for_the_last_digits(data, after, later):
    plan = {after: [command("pause", 1)], after + later: [command("unpause", 1)]}
    result = steered(data, "stack", plan, stack=4)
    whole = steered(data, "whole", {}, stack=4)
    assert statuses(result) == ["finished"] * 4
    for number in range(4):
        found = [epoch["val_loss"] for epoch in result.history(number)]
        expected = [epoch["val_loss"] for epoch in whole.history(number)]
        assert found == pytest.approx(expected, rel=1e-9)


def test_two_people_may_unpause_the_same_trial(data):
    plan = {1: [command("pause", 1)], 3: [command("unpause", 1), command("unpause", 1)]}
    assert statuses(steered(data, "twice", plan, stack=4)) == ["finished"] * 4


def test_a_running_member_of_a_stack_is_trained_longer_within_it(data):
    result = steered(data, "longer", {2: [command("extend", 1, epochs=5)]}, stack=4)
    assert [len(result.history(number)) for number in range(4)] == [3, 5, 3, 3]


def test_a_run_refuses_more_epochs_than_its_goal_allows(data):
    goal = {"name": "goal", "metric": "val_loss", "mode": "min", "target": 0.0, "max_epochs": 4}
    plan = {2: [command("extend", 0, epochs=5), command("extend", 1, epochs=4)]}
    result = steered(data, "allowed", plan, goal=goal)
    assert [len(result.history(number)) for number in range(4)] == [3, 4, 3, 3]
    assert refused(data.parent / "allowed") == ["`epochs <= goal.max_epochs` must hold, b", None]


def test_all_of_a_stack_wait_and_one_goes_on(data):
    plan = {2: [command("pause", n) for n in range(4)], 3: [command("unpause", 2)]}
    result = steered(data, "all", plan, stack=4, workers=2)
    assert statuses(result) == ["paused", "paused", "finished", "paused"]


@pytest.mark.parametrize("workers", [1, 2])
def test_stopped_and_let_go_on_at_once(data, workers):
    plan = {2: [command("stop", 0), command("extend", 0, epochs=4)]}
    result = steered(data, "again", plan, workers=workers)
    assert statuses(result) == ["finished"] * 4
    assert len(result.history(0)) == 4


def test_each_command_is_judged_by_what_those_before_it_have_brought_about(data):
    plan = {2: [command("extend", 0, epochs=6), command("extend", 0, epochs=5)]}
    result = steered(data, "both", plan)
    assert len(result.history(0)) == 6
    assert refused(data.parent / "both") == [None, "t0000 must be meant to have fewer than 5"]


@pytest.mark.parametrize("after", [4, 22, 40])
def test_a_warm_clone_of_one_that_was_extended_goes_as_far(data, after):
    """Wherever its parent is: before the run's epochs are over, after them, and at its end."""
    plan = {1: [command("extend", 0, epochs=5)], after: [command("clone", 0, params={"lr": 0.3})]}
    space = {"lr": [0.5, 0.2]}
    result = steered(data, "copied", plan, space=space, checkpoint=Checkpointing.VISIT)
    assert statuses(result) == ["finished"] * 3
    assert [result.history(number)[-1]["epoch"] for number in range(3)] == [4, 2, 4]


@pytest.mark.parametrize("after", [4, *range(10, 30, 3)])
@pytest.mark.parametrize(
    "changes",
    [
        {"stopper": {"name": "hyperband", "eta": 2}},
        {"stopper": {"name": "asha", "eta": 2}},
        {"budget": {"epochs": 3}},
    ],
    ids=["hyperband", "asha", "budget"],
)
def test_so_does_that_of_one_that_a_search_has_let_go_so_far(data, after, changes):
    """Wherever in an epoch its parent is."""
    plan = {1: [command("extend", 0, epochs=5)], after: [command("clone", 0)]}
    changes = {"space": {"lr": [0.5, 0.2]}, **changes}
    result = steered(data, "further", plan, checkpoint=Checkpointing.VISIT, **changes)
    (copy,) = [trial.number for trial in result.trials if trial.parent == "t0000"]
    assert [statuses(result)[number] for number in (0, copy)] == ["finished"] * 2
    assert [result.history(number)[-1]["epoch"] for number in (0, copy)] == [4, 4]


def test_what_waits_after_the_end_of_a_run_ends(data):
    """Nobody is left to let it go on."""
    changes = {"stopper": {"name": "asha", "eta": 2}, "budget": {"epochs": 5}, "epochs": 4}
    steered(data, "ended", {}, **changes)
    before = Result.open(data.parent / "ended")
    stopped = next(t.number for t in before.trials if len(before.history(t.number)) == 1)
    send(data.parent / "ended", command("extend", stopped, epochs=2))
    result = steered(data, "ended", {}, **changes)
    assert result.is_finished
    assert len(result.history(stopped)) == 2


@pytest.mark.parametrize("stack", [4, False])
def test_a_trial_whose_stack_was_given_up_at_the_end_goes_on_from_its_state(data, stack):
    """Its state was taken out of the stack, of which nothing was kept."""
    name = f"kept-{stack}"
    changes = {"epochs": 2, "stack": stack, "keep_top": 1}
    best = steered(data, name, {}, **changes).best.number
    send(data.parent / name, command("extend", best, epochs=4))
    result = steered(data, name, {}, **changes)
    longer = steered(data, f"longer-{stack}", {}, **{**changes, "epochs": 4, "keep_top": None})
    found = [epoch["val_loss"] for epoch in result.history(best)]
    expected = [epoch["val_loss"] for epoch in longer.history(best)]
    assert found == pytest.approx(expected, rel=1e-9)


def test_a_member_of_a_stack_goes_on_once_the_last_of_the_others_ends(data):
    """It waits for epochs of the budget, which another that was to go on alone gives back."""
    changes = {"search": "random", "num_trials": 2, "seed": 279, "stack": 3}
    stopper = {"stopper": {"name": "hyperband", "eta": 2}, "budget": {"epochs": 5}}
    plan = {0: [command("extend", 1, epochs=6)]}
    space = {"lr": LogUniform(1e-3, 1.0)}
    result = steered(data, "promoted", plan, **changes, **stopper, space=space)
    assert statuses(result) == ["finished", "stopped"]


def test_a_search_learns_from_what_people_add(data):
    options = {"search": "tpe", "search_options": {"startup_trials": 1}, "num_trials": 4}
    changes = {**options, "concurrent": 1, "epochs": 1, "space": {"lr": LogUniform(1e-4, 1.0)}}
    alone = steered(data, "alone", {}, **changes)
    plan = {1: [{"command": "add", "params": {"lr": 0.9}}] * 2}
    helped = steered(data, "helped", plan, **changes)
    found = [t.params for t in helped.trials if t.params != {"lr": 0.9}]
    assert found[:1] == [t.params for t in alone.trials][:1]
    assert found[1:] != [t.params for t in alone.trials][1:]


def test_what_is_refused_takes_no_number(data):
    wrong = command("clone", 0, params={"batch_size": 0})
    plan = {2: [wrong, {"command": "add", "params": {"lr": 0.3}}]}
    result = steered(data, "numbers", {**plan})
    assert [trial.number for trial in result.trials] == [0, 1, 2, 3, 4]


def test_an_added_trial_of_a_run_that_was_ended_is_trained_to_its_end(data):
    stopper = {"name": "asha", "eta": 2}
    changes = {"search": "grid", "stopper": stopper, "budget": {"epochs": 5}}
    steered(data, "ended", {}, **changes)
    send(data.parent / "ended", {"command": "add", "params": {"lr": 0.3}})
    result = steered(data, "ended", {}, **changes)
    assert result.is_finished
    assert len(result.history(result.trials[-1].number)) == 3


def test_without_checkpoints_what_needs_them_is_refused(data):
    plan = {2: [command("pause", 0), command("extend", 1, epochs=9), command("clone", 1)]}
    result = steered(data, "off", plan, checkpoint=Checkpointing.OFF)
    assert statuses(result) == ["finished"] * 4
