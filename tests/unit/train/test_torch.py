"""The PyTorch loop: modes, callbacks, seeds, clipping, mixed precision, evaluation."""

from __future__ import annotations

import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn, optim

from cerebro.errors import UnknownParamError, UsageError
from cerebro.train.torch.framework import TorchFramework
from tests.unit.train.bare import (
    Bare,
    Chain,
    LineTask,
    assert_equals_bare_loop,
    differing,
    make_call,
    run_visits,
)


class RecordingTask(LineTask):
    """Notes what it is called with; the notes stay in this process."""

    def __init__(self):
        self.seen = []


# Modes


def test_the_model_is_in_training_mode_in_a_training_visit(data):
    class T(RecordingTask):
        def loss(self, model, batch, params):
            self.seen.append((model.training, torch.is_grad_enabled()))
            return super().loss(model, batch, params)

    task = T()
    run_visits(task, data, 2)
    assert set(task.seen) == {(True, True)}


def test_the_model_is_in_evaluation_mode_without_gradients_in_an_evaluation(data):
    class T(RecordingTask):
        def metrics(self, model, batch, params):
            self.seen.append((model.training, torch.is_grad_enabled()))
            return {}

    task = T()
    run_visits(task, data, 1).evaluate()
    assert set(task.seen) == {(False, False)}


def test_a_callback_that_turns_evaluation_mode_on_does_not_stop_dropout(data):
    class T(RecordingTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            model.eval()

        def loss(self, model, batch, params):
            self.seen.append(model.training)
            return super().loss(model, batch, params)

    task = T()
    run_visits(task, data, 1)
    assert all(task.seen)


# Equality with the plain loop


def test_a_chain_of_visits_equals_a_plain_loop(data):
    assert_equals_bare_loop(LineTask(), data)


def test_gradients_are_clipped_by_the_attribute(data):
    class T(LineTask):
        clip_grad_norm = 0.01

    assert_equals_bare_loop(T(), data)
    assert differing(run_visits(T(), data, 1).tensors, run_visits(LineTask(), data, 1).tensors)


def test_params_win_over_the_clipping_attribute(data):
    class T(LineTask):
        clip_grad_norm = 0.01

    class Loose(LineTask):
        clip_grad_norm = 0.5

    by_params = run_visits(T(), data, 2, {"clip_grad_norm": 0.5})
    assert differing(by_params.tensors, run_visits(Loose(), data, 2).tensors) == []


def test_params_may_turn_clipping_off(data):
    class T(LineTask):
        clip_grad_norm = 0.01

    off = run_visits(T(), data, 2, {"clip_grad_norm": None})
    assert differing(off.tensors, run_visits(LineTask(), data, 2).tensors) == []


def test_losses_are_those_of_the_plain_loop(data):
    chain, bare = run_visits(LineTask(), data, 2), Bare(LineTask(), data).run(2)
    assert [*chain.reports[0].members[0].losses, *chain.reports[1].members[0].losses] == [
        v for v, _ in bare.losses
    ]


def test_steps_are_counted_over_the_life_of_the_trial(data):
    assert [report.members[0].first_step for report in run_visits(LineTask(), data, 3).reports] == [
        0,
        3,
        6,
    ]


def test_a_training_report_weighs_losses_by_rows(data):
    report = run_visits(LineTask(), data, 1).reports[0]
    total, rows = report.members[0].sums["loss"]
    expected = sum(
        loss * size for loss, size in zip(report.members[0].losses, [8, 8, 6], strict=True)
    )
    assert rows == report.rows == 22
    assert total == pytest.approx(expected, rel=1e-12)


# Mixed precision


def test_bf16_runs_the_model_in_bf16(data):
    class T(RecordingTask):
        amp = "bf16"

        def loss(self, model, batch, params):
            self.seen.append(model(batch["x"]).dtype)
            return super().loss(model, batch, params)

    task = T()
    chain = run_visits(task, data, 2)
    assert set(task.seen) == {torch.bfloat16}
    assert differing(chain.tensors, run_visits(LineTask(), data, 2).tensors)


def test_bf16_also_holds_in_evaluation(data):
    class T(RecordingTask):
        amp = "bf16"

        def metrics(self, model, batch, params):
            self.seen.append(model(batch["x"]).dtype)
            return {}

    task = T()
    run_visits(task, data, 1).evaluate()
    assert set(task.seen) == {torch.bfloat16}


def test_weights_and_optimizer_stay_in_float32_under_bf16(data):
    tensors = run_visits(LineTask(), data, 2, {"amp": "bf16"}).tensors
    assert {tensor.dtype for tensor in tensors.values()} == {torch.float32}


def test_params_may_turn_mixed_precision_off(data):
    class T(LineTask):
        amp = "bf16"

    off = run_visits(T(), data, 2, {"amp": None})
    assert differing(off.tensors, run_visits(LineTask(), data, 2).tensors) == []


def test_an_unknown_precision_is_refused_with_the_known_ones(data):
    with pytest.raises(UsageError, match="amp must be one of tf32, bf16, fp16, but got 'fp8'"):
        run_visits(LineTask(), data, 1, {"amp": "fp8"})


# Callbacks


def test_callbacks_come_at_the_first_and_last_visit_of_an_epoch(data):
    class T(RecordingTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            self.seen.append(f"start {epoch}")

        def on_epoch_end(self, model, optimizer, params, epoch):
            self.seen.append(f"end {epoch}")

    task, chain = T(), None
    chain = Chain(task, data)
    told = []
    for _ in range(4):
        task.seen.clear()
        chain.run(1)
        told.append(list(task.seen))
    assert told == [["start 0"], ["end 0"], ["start 1"], ["end 1"]]


def test_evaluation_calls_no_epoch_callback(data):
    class T(RecordingTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            self.seen.append("start")

    task = T()
    chain = run_visits(task, data, 1)
    chain.evaluate()
    assert task.seen == ["start"]


def test_layers_frozen_at_the_start_of_an_epoch_stay_frozen_after_a_hop(data):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            model[0].requires_grad_(epoch != 1)

    assert_equals_bare_loop(T(), data)
    chain = run_visits(T(), data, 6)
    weights = [state_weight(chain, visit) for visit in range(6)]
    assert torch.equal(weights[1], weights[3])
    assert not torch.equal(weights[3], weights[4])


def state_weight(chain, visit):
    return chain.framework.load({}, chain.states[visit])[0].weight


# Randomness


def test_global_generators_are_seeded_for_each_visit(data):
    class T(LineTask):
        def loss(self, model, batch, params):
            noise = torch.rand(1).item() + np.random.rand() + random.random()
            return super().loss(model, batch, params) * (1 + noise)

    assert_equals_bare_loop(T(), data)


def test_what_happened_before_a_visit_does_not_change_it(data):
    first = run_visits(LineTask(), data, 2)
    random.random()
    torch.rand(100)
    np.random.rand(3)
    assert bytes(first.states[-1].buffer) == bytes(
        run_visits(LineTask(), data, 2).states[-1].buffer
    )


def test_an_attempt_draws_the_same_numbers_as_the_one_before(data):
    framework, shard = TorchFramework(LineTask(), device="cpu"), data.open_shard("train", 0)
    first, again = (
        framework.train(make_call(attempt=attempt), shard, None, lambda n: memoryview(bytearray(n)))
        for attempt in (0, 1)
    )
    assert bytes(first[0].buffer) == bytes(again[0].buffer)


@pytest.mark.parametrize("change", [{"seed": 1}, {"trials": (1,)}])
def test_seed_and_trial_decide_the_initial_weights(data, change):
    class T(LineTask):
        def optimizer(self, model, params):
            return optim.SGD(model.parameters(), lr=0.0)

    framework, shard = TorchFramework(T(), device="cpu"), data.open_shard("train", 0)
    states = [
        framework.train(call, shard, None, lambda n: memoryview(bytearray(n)))[0]
        for call in (make_call(), replace(make_call(), **change))
    ]
    assert bytes(states[0].buffer) != bytes(states[1].buffer)


def test_augment_changes_training_batches_alone(data):
    class T(RecordingTask):
        def augment(self, batch, rng, params):
            self.seen.append(len(batch["x"]))
            return {**batch, "y": batch["y"] * 0}

    task = T()
    chain = run_visits(task, data, 2)
    task.seen.clear()
    chain.evaluate()
    assert task.seen == []
    assert (
        chain.reports[1].members[0].sums
        != run_visits(LineTask(), data, 2).reports[1].members[0].sums
    )


def test_augment_gets_a_seeded_generator(data):
    class T(LineTask):
        def augment(self, batch, rng, params):
            return {**batch, "x": batch["x"] + torch.randn(batch["x"].shape, generator=rng)}

    assert_equals_bare_loop(T(), data)


def test_augment_may_change_a_batch_in_place_without_harm_to_the_shard(data):
    class T(LineTask):
        def augment(self, batch, rng, params):
            batch["x"].mul_(2)
            return batch

    before = data.open_shard("train", 0).columns["x"].copy()
    assert_equals_bare_loop(T(), data)
    assert np.array_equal(data.open_shard("train", 0).columns["x"], before)


# Params


def test_a_param_that_is_missing_is_named_with_those_there_are(data):
    class T(LineTask):
        def model(self, params):
            return nn.Linear(4, params["width"])

    with pytest.raises(UnknownParamError, match=r"params\['width'\].*has: depth, lr"):
        run_visits(T(), data, 1, {"lr": 0.1, "depth": 2})
