from __future__ import annotations

import pytest

from cerebro.errors import DiskFullError, UsageError
from cerebro.run.checks import check_metric, check_space
from cerebro.run.recovery import load_history
from cerebro.run.surveyor import survey_call
from cerebro.storage import DirectoryStore
from cerebro.train.visit import MemberReport, VisitReport
from tests.experiments import fit_toy, toy_spec
from tests.unit.run.runs import fit_until


class FullStore(DirectoryStore):
    def free_bytes(self):
        return 0


@pytest.mark.parametrize(
    ("stack", "epochs", "states"),
    [(False, 5, 4 * 3), (4, 5, 4 * 7), (4, 2, 4 * 4), (3, 5, 4 * 7)],
)
def test_a_stack_needs_room_for_all_checkpoints_that_may_be_kept(data, root, stack, epochs, states):
    """Two and one more of a trial alone; of a stack six and one more, if it ever has so many."""
    spec = toy_spec(data, {"lr": [0.1, 0.2, 0.3, 0.4]}, stack=stack, epochs=epochs)
    fit_until(root, spec, 1, "visit", trial=None)
    _, history = load_history(DirectoryStore(root))
    with pytest.raises(DiskFullError, match=f"need up to {states * 100} bytes, but 0 are free"):
        check_space(FullStore(root), spec, history, state_bytes=100)


def test_a_member_of_a_stack_that_diverged_says_nothing_of_metrics(data):
    goal = {"name": "goal", "metric": "train_loss", "mode": "min", "target": 0.9}
    spec = toy_spec(data, goal=goal)
    bad, good = MemberReport(sums={}, diverged="nan"), MemberReport(sums={"loss": (8.0, 4)})
    check_metric(spec, VisitReport(rows=4, members=(bad, good), metric_names=("loss",)))


def test_a_goal_by_what_no_trial_has_ends_the_run_with_what_there_is(data, folder, root):
    goal = {"name": "goal", "metric": "val_f1", "mode": "max", "target": 0.9, "max_epochs": None}
    with pytest.raises(UsageError, match=r"metric of the goal .*'val_f1'\. Known: train_loss, "):
        fit_toy(root, toy_spec(data, goal=goal))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("is_one_of_several", [False, True])
def test_a_stopper_by_what_no_trial_has_ends_the_run(data, folder, root, is_one_of_several):
    stopper = {"name": "patience", "metric": "val_acc", "mode": "max"}
    if is_one_of_several:
        stopper = {"name": "all", "stoppers": [{"name": "endless"}, stopper]}
    with pytest.raises(
        UsageError, match=r"metric of stopper 'patience' .*'val_acc'\. Known: train_loss, "
    ):
        fit_toy(root, toy_spec(data, stopper=stopper))
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"objectives": [["val_size", "min"]]}, "metric"),
        ({"constraints": {"val_size": 10.0}}, "metric of a constraint"),
    ],
    ids=["second metric", "constraint"],
)
def test_a_search_for_what_no_trial_has_ends_the_run(data, folder, root, changes, what):
    """It would find nothing better than anything else."""
    with pytest.raises(UsageError, match=f"^the {what} must be .*'val_size'. Known: train_loss, "):
        fit_toy(root, toy_spec(data, **changes))
    assert list(folder.iterdir()) == []


def test_what_a_stopper_of_the_users_own_calls_a_metric_is_its_own(data, root):
    spec = toy_spec(data, stopper={"name": "own", "metric": "gap"})
    check_metric(
        spec,
        VisitReport(
            rows=4, members=(MemberReport(sums={"loss": (8.0, 4)}),), metric_names=("loss",)
        ),
    )


def test_stacks_are_asked_for_all_that_a_search_goes_by(data):
    spec = toy_spec(
        data, objectives=[["train_right", "max"]], constraints={"train_size": 1.0, "val_loss": 2.0}
    )
    assert survey_call(spec, {0: {"lr": 0.1}}).goes_by >= {"right", "size"}
