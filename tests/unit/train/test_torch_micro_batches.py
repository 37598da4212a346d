"""Batches trained in parts: less memory, the same step."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import SparseRows
from cerebro.errors import UsageError
from cerebro.train.torch.device import as_tensor
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.torch.step import split
from cerebro.train.visit import Stacking, SurveyCall
from cerebro.types import Split
from tests.unit.train.bare import LineTask, allocate, make_call, make_data


class PlainTask(LineTask):
    """Without dropout, which draws for each part."""

    def model(self, params):
        return nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 1))


@pytest.fixture
def data(tmp_path):
    return make_data(tmp_path / "data")


def trained(data, task, visits=4, **changes):
    """Weights by name, and losses, after some visits."""
    framework, state, losses = TorchFramework(task, device="cpu"), None, []
    for visit in range(visits):
        call = make_call(visit, **changes)
        shard = data.open_shard(Split.TRAIN, call.shard)
        state, report = framework.train(call, shard, state, allocate)
        losses += report.members[0].losses
        assert report.rows == shard.rows
    assert state is not None
    return dict(framework.load({}, state).named_parameters()), losses


def assert_alike(one, other):
    for name, weight in one[0].items():
        torch.testing.assert_close(weight, other[0][name], rtol=1e-6, atol=1e-6)
    assert one[1] == pytest.approx(other[1], rel=1e-6)


def with_micro_batch(cls, size):
    task = cls()
    task.micro_batch = size
    return task


@pytest.mark.parametrize("size", [1, 3, 4, 7])
def test_parts_of_a_batch_make_the_step_of_the_whole(data, size):
    # Batches of 8, 8 and 6 rows: the last part of each is a smaller one.
    assert_alike(trained(data, PlainTask()), trained(data, with_micro_batch(PlainTask, size)))


@pytest.mark.parametrize("size", [8, 100])
def test_a_batch_that_fits_is_trained_as_it_is(data, size):
    whole, parts = trained(data, LineTask()), trained(data, with_micro_batch(LineTask, size))
    assert whole[1] == parts[1]
    assert all(torch.equal(weight, parts[0][name]) for name, weight in whole[0].items())


def test_the_driver_may_set_the_size(data):
    seen = []

    class Seeing(PlainTask):
        def loss(self, model, batch, params):
            seen.append(len(batch["x"]))
            return super().loss(model, batch, params)

    trained(data, with_micro_batch(Seeing, "auto"), 1, micro_batch=3)
    assert seen == [3, 3, 2, 3, 3, 2, 3, 3]


def test_a_task_that_leaves_it_to_us_trains_whole_batches_at_first(data):
    whole, parts = trained(data, LineTask()), trained(data, with_micro_batch(LineTask, "auto"))
    assert whole[1] == parts[1]


def test_gradients_are_clipped_once_they_have_added_up(data):
    class Clipped(PlainTask):
        clip_grad_norm = 0.05

    assert_alike(trained(data, Clipped()), trained(data, with_micro_batch(Clipped, 3)))


def test_it_works_under_autocast(data):
    class Half(PlainTask):
        amp = "bf16"

    weights, losses = trained(data, with_micro_batch(Half, 3))
    whole, _ = trained(data, Half())
    for name, weight in weights.items():
        torch.testing.assert_close(weight, whole[name], rtol=0.1, atol=0.05)
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("size", [0, -1, 2.5, True, "half"])
def test_a_size_that_is_none_is_refused(data, size):
    with pytest.raises(UsageError, match=r"micro_batch must be an integer of at least 1, 'auto'"):
        trained(data, with_micro_batch(LineTask, size), 1)


def test_a_stack_is_refused(data):
    task = with_micro_batch(PlainTask, 3)
    with pytest.raises(UsageError, match="trained alone"):
        trained(data, task, 1, stack=Stacking())


@pytest.mark.parametrize("size", [3, "auto"])
def test_a_survey_says_why_such_trials_are_not_stacked(data, size):
    framework = TorchFramework(with_micro_batch(PlainTask, size), device="cpu")
    call = SurveyCall(trials=(0, 1), params=({}, {}), batch_sizes=(8, 8), seed=0)
    (group,) = framework.survey(call, data.open_shard(Split.TRAIN, 0)).groups
    assert group.obstacle == "PlainTask.micro_batch cuts the batches of each trial alone"


def test_sparse_rows_and_text_are_cut_too():
    rows = SparseRows(np.array([0, 1, 1, 3]), np.array([2, 0, 1]), np.array([5.0, 6.0, 7.0]), 3)
    batch = {"x": as_tensor(rows), "text": np.array(["a", "b", "c"]), "scale": 2.0}
    parts = [part for part, _ in split(batch, 3, 2)]
    dense = [part["x"].to_dense() for part in parts]
    assert torch.equal(torch.cat(dense), torch.from_numpy(rows.dense()))
    assert [list(part["text"]) for part in parts] == [["a", "b"], ["c"]]
    assert [part["scale"] for part in parts] == [2.0, 2.0]


def test_a_batch_whose_rows_augment_has_changed_cannot_be_cut(data):
    class Doubling(PlainTask):
        def augment(self, batch, rng, params):
            return {name: torch.cat([value, value]) for name, value in batch.items()}

    with pytest.raises(UsageError, match="leave their number as it is"):
        trained(data, with_micro_batch(Doubling, 3), 1)
