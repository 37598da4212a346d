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
    spec = toy_spec(data, SPACE, **{"epochs": 3, "stack": False, **changes})
    fit_toy(root, spec, backend=Meddling(root, plan), workers=workers)
    check(root)
    return Result.open(root)


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


def test_what_is_refused_takes_no_number(data):
    wrong = command("clone", 0, params={"batch_size": 0})
    plan = {2: [wrong, {"command": "add", "params": {"lr": 0.3}}]}
    result = steered(data, "numbers", {**plan})
    assert [trial.number for trial in result.trials] == [0, 1, 2, 3, 4]


def test_an_added_trial_of_a_run_that_was_ended_is_trained_to_its_end(data):
    stopper = {"name": "asha", "eta": 2}
    changes = {"search": "grid", "stopper": stopper, "budget": {"epochs": 5}}
    steered(data, "ended", {}, **changes)
    (data.parent / "ended" / "inbox").mkdir(exist_ok=True)
    add = {"command": "add", "params": {"lr": 0.3}}
    (data.parent / "ended" / "inbox" / "1.json").write_text(json.dumps(add))
    result = steered(data, "ended", {}, **changes)
    assert result.is_finished
    assert len(result.history(result.trials[-1].number)) == 3


def test_without_checkpoints_what_needs_them_is_refused(data):
    plan = {2: [command("pause", 0), command("extend", 1, epochs=9), command("clone", 1)]}
    result = steered(data, "off", plan, checkpoint=Checkpointing.OFF)
    assert statuses(result) == ["finished"] * 4
