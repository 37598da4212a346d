"""Stacks of PyTorch models: close to the same models alone, and exact on every way to the end."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from cerebro.backend import LocalBackend
from cerebro.data import digits, from_arrays
from cerebro.results import Result
from cerebro.testing.history import check
from cerebro.types import Mode
from tests.experiments import fast_folder, fit_toy, outcome, toy_spec
from tests.tasks import Perceptron
from tests.unit.run.runs import fit_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

SPACE = {"lr": [1e-2, 3e-3, 1e-3, 3e-4]}


@pytest.fixture(scope="module")
def home():
    with fast_folder() as path:
        data = {name: column[:600] for name, column in digits().items()}
        from_arrays(path / "data", train=data, shards=2, validation=0.25)
        fit_toy(path / "whole", spec_of(path), task=Perceptron())
        yield path


@pytest.fixture
def folder():
    with fast_folder() as path:
        yield path


def spec_of(home):
    return toy_spec(home / "data", SPACE, epochs=3, stack=4)


def test_the_trials_are_one_stack(home):
    check(home / "whole")
    (group,) = Result.open(home / "whole").document.stacks["groups"]
    assert (group["obstacle"], group["members"], group["stacks"]) == (None, 4, 1)


def test_a_trial_in_a_stack_learns_what_it_learns_alone(home, folder):
    """Both start at shard 0: the stack, and its first trial."""
    alone = replace(spec_of(home), space={"lr": [1e-2]}, stack=False)
    fit_toy(folder / "alone", alone, task=Perceptron())
    one, other = Result.open(home / "whole"), Result.open(folder / "alone")
    found = [epoch["val_loss"] for epoch in one.history(0)]
    assert found == pytest.approx([epoch["val_loss"] for epoch in other.history(0)], rel=1e-4)
    for name, tensor in one.load(0, task=Perceptron()).state_dict().items():
        expected = other.load(0, task=Perceptron()).state_dict()[name]
        assert torch.allclose(tensor, expected, rtol=1e-3, atol=1e-5), name


class Counting(Perceptron):
    """Tells its meter a number of Python's, which no stack can have."""

    def loss(self, model, batch, params):
        if self.meter is not None:
            right = sum((model(batch["x"]).argmax(1) == batch["y"]).tolist())
            self.meter.add({"right": right / len(batch["y"])}, len(batch["y"]))
        return super().loss(model, batch, params)


@pytest.mark.parametrize("kind", ["metric", "goal", "stopper"])
def test_trials_are_not_stacked_where_the_run_goes_by_what_stacks_cannot_tell(home, folder, kind):
    by = {"metric": "train_right", "mode": Mode.MAX}
    changes = {
        "metric": by,
        "goal": {"goal": {"name": "goal", **by, "mode": "max", "target": 2.0, "max_epochs": None}},
        "stopper": {"stopper": {"name": "patience", **by, "mode": "max"}},
    }[kind]
    fit_toy(folder / "run", replace(spec_of(home), **changes), task=Counting())
    result = Result.open(folder / "run")
    (group,) = result.document.stacks["groups"]
    assert group["obstacle"] == "the run goes by train_right, which stacks cannot tell"
    assert all("train_right" in trial.metrics for trial in result.trials)


def test_worker_processes_give_the_same_bits(home, folder):
    options = {"backend": LocalBackend(), "workers": 2, "threaded": True}
    fit_toy(folder / "run", spec_of(home), task=Perceptron(), **options)
    check(folder / "run")
    assert outcome(folder / "run") == outcome(home / "whole")


@pytest.mark.parametrize("visits", [1, 2, 5])
def test_a_run_that_was_killed_resumes_to_the_same_bits(home, folder, visits):
    fit_until(folder / "run", spec_of(home), visits, "visit", trial=None, task=Perceptron())
    fit_toy(folder / "run", spec_of(home), task=Perceptron())
    check(folder / "run")
    assert outcome(folder / "run") == outcome(home / "whole")


def test_a_member_that_diverges_leaves_the_others_alone(home, folder):
    spec = replace(spec_of(home), space={"lr": [1e-2, 1e30, 1e-3]})
    fit_toy(folder / "run", spec, task=Perceptron())
    check(folder / "run")
    result = Result.open(folder / "run")
    assert [str(trial.status) for trial in result.trials] == ["finished", "diverged", "finished"]
    well = Result.open(home / "whole")
    found = [epoch["val_loss"] for epoch in result.history(0)]
    assert np.allclose(found, [epoch["val_loss"] for epoch in well.history(0)], rtol=1e-4)
