"""R1, R2 with stacks: killed at any operation on the disk, a run resumes exactly."""

from __future__ import annotations

import pytest

from cerebro.run.spec import Checkpointing
from cerebro.storage import DirectoryStore
from cerebro.storage.journal import read
from cerebro.testing.faults import KillAfter, KillBefore, Tear
from tests.experiments import make_toy_data, toy_spec
from tests.kills import assert_exact_after_every_kill, assert_exact_from_every_state

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(300)]

LRS = [0.5, 0.05, 0.2]


def failing(kind, **where):
    return {"lr": [0.5, 0.05], "fail": [None, {"kind": kind, **where}]}


#: Name -> space, changes of the spec, settings, a record that it must have.
CASES = {
    "two": ({"lr": LRS}, {"stack": 2}, {}, "stacks"),
    "diverges": (failing("nan_loss", epoch=1), {"epochs": 3}, {}, "trial_end"),
    "diverges-at-the-end": (failing("nan_metric", epoch=0), {}, {}, "trial_end"),
    "all-diverge": (
        {"lr": LRS, "fail": [{"kind": "nan_state", "epoch": 1, "step": 1}]},
        {"epochs": 3},
        {},
        "trial_end",
    ),
    "dissolved": (failing("raise", epoch=1, step=1), {}, {}, "dissolved"),
    "keep-top": ({"lr": LRS}, {}, {"keep_top": 1}, "taken"),
    "by-epoch": (
        failing("nan_loss", epoch=1),
        {"epochs": 3, "checkpoint": Checkpointing.EPOCH},
        {},
        "trial_end",
    ),
    "dissolved-by-epoch": (
        failing("raise_stacked", epoch=1, step=1),
        {"checkpoint": Checkpointing.EPOCH},
        {},
        "dissolved",
    ),
    "dissolved-unsaved": (
        failing("raise", epoch=0, step=1),
        {"checkpoint": Checkpointing.OFF},
        {},
        "dissolved",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_run_with_stacks_killed_at_any_operation_resumes_exactly(folder, case):
    space, changes, settings, kind = CASES[case]
    make_toy_data(folder / "data")
    spec = toy_spec(folder / "data", space, **{"stack": 100, **changes})
    assert assert_exact_from_every_state(folder, spec, **settings) > 30
    assert kind in {record["type"] for record in read(DirectoryStore(folder / "whole")).records}


@pytest.mark.parametrize("kill", [KillBefore, KillAfter, Tear])
def test_however_it_was_killed(folder, kill, seed):
    """With real kills, at every third operation, from another one on in each session."""
    make_toy_data(folder / "data")
    spec = toy_spec(folder / "data", failing("nan_loss", epoch=1), epochs=3, stack=100)
    hits = {"first": 1 + seed % 3, "stride": 3}
    assert assert_exact_after_every_kill(folder, spec, kill, **hits) > 60 // 3


def test_one_that_takes_members_out_of_old_checkpoints_does_so_again(folder):
    """Best epochs of many members are spread over the run; every seventh state is resumed."""
    make_toy_data(folder / "data", shards=1)
    space = {"lr": [0.02, 0.5, 1.0, 2.0, 3.0, 5.0, 8.0, 12.0], "noise": [0.0, 0.5]}
    spec = toy_spec(folder / "data", space, epochs=14, stack=100)
    assert assert_exact_from_every_state(folder, spec, first=3, stride=7) > 150
    assert "taken" in {record["type"] for record in read(DirectoryStore(folder / "whole")).records}
