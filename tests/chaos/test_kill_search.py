"""R1, R2 with searches that learn and stop: killed at any operation, they go on as they would."""

from __future__ import annotations

import itertools
import json
import shutil

import pytest

from cerebro.results import Result
from cerebro.run.spec import Checkpointing
from cerebro.search.domain import LogUniform
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.faults import KillAfter, Tear
from cerebro.testing.history import check
from tests.experiments import fit_toy, make_toy_data, toy_spec
from tests.kills import (
    assert_exact_after_every_kill,
    assert_exact_from_every_state,
    run_until_killed,
)

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

SPACE = {"lr": LogUniform(1e-3, 1.0)}
SICK = {"lr": [0.5, 0.05, 0.2], "fail": [None, {"kind": "nan_loss", "epoch": 1}]}

GOAL = {"name": "goal", "metric": "val_loss", "mode": "min", "target": 1.6, "max_epochs": None}

#: Name -> space, changes of the spec, a decision that it must have.
CASES = {
    "asha": (SPACE, {"stopper": {"name": "asha", "eta": 2}, "concurrent": 3}, "promote"),
    "asha-stops": (SPACE, {"stopper": {"name": "asha", "kind": "stop", "eta": 2}}, "stop"),
    "asha-in-stacks": (SPACE, {"stopper": {"name": "asha", "eta": 2}, "stack": 2}, "promote"),
    "halving": (SPACE, {"stopper": {"name": "halving", "eta": 2}, "stack": 3}, "promote"),
    "halving-by-epoch": (
        SPACE,
        {"stopper": {"name": "halving", "eta": 2}, "checkpoint": Checkpointing.EPOCH},
        "promote",
    ),
    "median": (
        {"lr": [0.0001, 0.0002, 0.05, 0.5]},
        {
            "search": "grid",
            "num_trials": None,
            "stopper": {"name": "median", "grace": 1, "min_trials": 2},
        },
        "stop",
    ),
    "pbt": (SPACE, {"stopper": {"name": "pbt", "interval": 1}}, "promote"),
    "pbt-in-stacks": (SPACE, {"stopper": {"name": "pbt", "interval": 1}, "stack": 4}, "promote"),
    "tpe": (SPACE, {"search": "tpe", "epochs": 1, "num_trials": 6, "concurrent": 2}, None),
    "tpe-beside-a-smaller-stack": (
        SPACE,
        {
            **{"search": "tpe", "search_options": {"startup_trials": 2}, "num_trials": 5},
            "stopper": {"name": "asha", "eta": 2, "kind": "stop"},
            **{"stack": 2, "concurrent": 2, "seed": 831},
        },
        "stop",
    ),
    "budget": (SPACE, {"budget": {"epochs": 7}}, "halt"),
    "goal": ({"lr": [0.5, 0.05]}, {"search": "grid", "num_trials": None, "goal": GOAL}, "halt"),
    "sick": (SICK, {"search": "grid", "num_trials": None, "stopper": {"name": "asha"}}, "promote"),
}


#: Every seventh operation is hit, or state resumed, from another one on in each session.
STRIDE = 7


@pytest.mark.parametrize("case", CASES)
def test_a_search_killed_at_any_operation_goes_on_as_it_would(folder, case, seed):
    space, changes, what = CASES[case]
    make_toy_data(folder / "data")
    common = {"search": "random", "num_trials": 4, "epochs": 4, "stack": False}
    spec = toy_spec(folder / "data", space, **{**common, **changes})
    states = assert_exact_from_every_state(folder, spec, first=seed % STRIDE, stride=STRIDE)
    assert states > 50
    records = read(DirectoryStore(folder / "whole")).records
    if what is not None:
        assert what in {record["what"] for record in records if record["type"] == "decision"}
    is_population = spec.stopper.get("name") == "pbt"
    assert is_population == any(record.get("parent") is not None for record in records)


#: What people ask of a run before it begins, and what must have become of it.
COMMANDS = {
    "stop-and-pause": (
        [{"command": "stop", "trial": 1}, {"command": "pause", "trial": 2}],
        {1: "stopped"},
    ),
    "clone-and-add": (
        [
            {"command": "clone", "trial": 0, "params": {"lr": 0.3}},
            {"command": "add", "params": {"lr": 0.7}},
            {"command": "nonsense"},
        ],
        {},
    ),
    "stop-the-run": ([{"command": "stop"}], {0: "stopped", 1: "stopped"}),
}


@pytest.mark.parametrize("stopper", [{}, {"name": "asha", "eta": 2}, {"name": "pbt"}])
@pytest.mark.parametrize("case", COMMANDS)
def test_commands_are_carried_out_once_wherever_the_run_is_killed(folder, case, stopper, seed):
    """A copy of the same run, killed at some operation with the commands in its inbox."""
    make_toy_data(folder / "data")
    commands, expected = COMMANDS[case]
    changes = {"search": "random", "num_trials": 4, "epochs": 3, "stack": False}
    spec = toy_spec(folder / "data", SPACE, **changes, stopper=stopper)
    stride = 3 * STRIDE
    for n in itertools.count(1 + seed % stride, stride):
        root = folder / f"run{n}"
        # No copy of another: a command is known by when its file came.
        inbox = root / "inbox"
        inbox.mkdir(parents=True)
        for number, command in enumerate(commands):
            (inbox / f"{number}.json").write_text(json.dumps(command))
        operations = run_until_killed(root, spec, Tear(n))
        if operations is not None and n > operations:
            break
        check(root, is_settled=False)
        fit_toy(root, spec)
        check(root)
        records = read(DirectoryStore(root)).records
        taken = [record for record in records if record["type"] == "command"]
        assert len(taken) == len(commands)
        accepted = [record["id"] for record in taken if record["refused"] is None]
        effects = [r["command"] for r in records if r["type"] != "command" and r.get("command")]
        assert sorted(effects) == sorted(accepted)
        statuses = {trial.number: str(trial.status) for trial in Result.open(root).trials}
        assert {number: statuses[number] for number in expected} == expected
        assert not list(inbox.glob("*.json"))
        shutil.rmtree(root)


@pytest.mark.parametrize("kill", [KillAfter, Tear])
def test_however_it_was_killed(folder, kill, seed):
    make_toy_data(folder / "data")
    changes = {"search": "random", "num_trials": 4, "epochs": 4, "stack": False}
    stopper = {"name": "asha", "eta": 2}
    spec = toy_spec(folder / "data", SPACE, **changes, stopper=stopper, concurrent=3)
    hits = {"first": 1 + seed % STRIDE, "stride": STRIDE}
    assert assert_exact_after_every_kill(folder, spec, kill, **hits) > 50 // STRIDE
