"""R7 with stacks: whichever checkpoint is damaged, a stack goes back to one that will do."""

from __future__ import annotations

import shutil

import pytest

from cerebro.run.spec import Checkpointing
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.faults import flip_bit
from cerebro.testing.history import check
from tests.experiments import copy_run, fit_toy, make_toy_data, outcome, toy_spec
from tests.kills import states_of
from tests.unit.run.runs import fit_until, records_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]


def failing(*faults):
    """A trial that overshoots, one that does not, and one for each fault."""
    fails = [{"kind": kind, "epoch": epoch, "step": step} for kind, epoch, step in faults]
    return {"lr": [0.5], "noise": [0.0, 0.3], "fail": [None, *fails]}


#: Name -> space, changes of the spec.
CASES = {
    "early": (failing(("nan_loss", 1, 1)), {}),
    "evaluation": (failing(("nan_metric", 1, 0)), {}),
    "late": (failing(("nan_loss", 1, 2), ("nan_state", 3, 1)), {}),
    "all": ({"lr": 0.5, "fail": failing(("nan_loss", 1, 1), ("nan_loss", 4, 1))["fail"][1:]}, {}),
    "by-epoch": (failing(("nan_loss", 1, 1)), {"checkpoint": Checkpointing.EPOCH}),
    "dissolved": (failing(("nan_loss", 1, 1), ("raise", 2, 1)), {}),
    "many": ({"lr": [0.02, 0.5, 2.0, 5.0, 12.0], "noise": [0.0, 0.5]}, {"epochs": 12}),
}


def damage_each(root, spec, expected, where, **settings):
    """Resume a run once for each of its checkpoints, damaged; how many of them counted."""
    rollbacks = 0
    for file in sorted(root.glob("**/*.safetensors")):
        copy = copy_run(root, root.with_name("copy"))
        target = copy / file.relative_to(root)
        target.write_bytes(flip_bit(target.read_bytes(), 8 * target.stat().st_size - 1))
        fit_toy(copy, spec, **settings)
        told = f"{file.name} of {file.parent.parent.name} damaged {where}"
        rollbacks += len(records_of(copy, "rollback"))
        check(copy)
        assert outcome(copy) == expected, told
    return rollbacks


@pytest.mark.parametrize("case", CASES)
def test_a_damaged_checkpoint_of_a_stack_is_never_used(folder, case):
    space, changes = CASES[case]
    make_toy_data(folder / "data", shards=1 if case == "many" else 3)
    spec = toy_spec(folder / "data", space, **{"epochs": 5, "stack": 100, **changes})
    fit_toy(folder / "whole", spec)
    expected = outcome(folder / "whole")
    kinds = [str(record["type"]) for record in read(DirectoryStore(folder / "whole")).records]
    rollbacks = 0
    for kind in ("visit", "epoch", "trial_end"):
        for count in range(1, kinds.count(kind) + 1, 7 if case == "many" else 1):
            root = folder / f"{kind}{count}"
            fit_until(root, spec, count, kind, trial=None)
            rollbacks += damage_each(root, spec, expected, f"after {count} {kind} records")
            shutil.rmtree(root)
    assert rollbacks > 10


def test_what_is_whole_is_never_rolled_back(folder):
    """Killed anywhere, also while the best are taken out of a stack that is over."""
    make_toy_data(folder / "data", shards=3)
    spec = toy_spec(folder / "data", CASES["all"][0], epochs=6, stack=100)
    fit_toy(folder / "whole", spec, keep_top=1)
    expected = outcome(folder / "whole")
    states = states_of(folder / "run", spec, keep_top=1)
    for root in states:
        where = f"killed at {root.name}"
        if records_of(root, "dropped") and not records_of(root, "done"):
            damage_each(root, spec, expected, where, keep_top=1)
        fit_toy(root, spec, keep_top=1)
        check(root)
        assert records_of(root, "rollback") == [], where
        assert outcome(root) == expected, where
        shutil.rmtree(root)
    assert len(states) > 100
