"""Tasks that are wrong, and training that goes wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn, optim

from cerebro.errors import CerebroError, TrialError, UsageError
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Diverged
from tests.unit.train.bare import Chain, LineTask, run_visits


class Spoilt(LineTask):
    """Its loss is multiplied by `factor` in the second visit."""

    factor = float("nan")
    steps: list[int]

    def __init__(self):
        self.calls = 0
        self.steps = []

    def optimizer(self, model, params):
        optimizer = optim.SGD(model.parameters(), lr=0.1)
        optimizer.register_step_post_hook(lambda *_: self.steps.append(self.calls))
        return optimizer

    def loss(self, model, batch, params):
        self.calls += 1
        loss = super().loss(model, batch, params)
        return loss * self.factor if self.calls == 5 else loss


def test_a_loss_that_is_not_finite_diverges_before_the_optimizer_steps(data):
    task = Spoilt()
    with pytest.raises(Diverged, match="loss is nan at step 1 of the visit"):
        run_visits(task, data, 2)
    assert task.steps == [1, 2, 3, 4]


def test_a_diverged_visit_leaves_its_incoming_state_as_it_was(data):
    chain = Chain(Spoilt(), data).run(1)
    before = bytes(chain.states[0].buffer)
    with pytest.raises(Diverged):
        chain.run(1)
    assert bytes(chain.states[0].buffer) == before


def test_an_infinite_gradient_diverges_and_leaves_the_state_as_it_was(data):
    class Infinite(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, grad):
            return grad * float("inf")

    class T(Spoilt):
        def loss(self, model, batch, params):
            loss = super().loss(model, batch, params)
            return Infinite.apply(loss) if self.calls == 6 else loss

    T.factor = 1.0
    chain = Chain(T(), data).run(1)
    before = bytes(chain.states[0].buffer)
    with pytest.raises(Diverged, match="is not finite after the visit"):
        chain.run(1)
    assert bytes(chain.states[0].buffer) == before


def test_a_metric_that_is_not_finite_diverges(data):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"score": float("nan")}

    with pytest.raises(Diverged, match="val_score is nan"):
        run_visits(T(), data, 1).evaluate()


def test_a_mask_of_minus_infinity_is_no_divergence(data):
    class Masked(nn.Linear):
        def __init__(self):
            super().__init__(4, 1)
            self.register_buffer("mask", torch.full((3, 3), float("-inf")).triu(1))

    class T(LineTask):
        def model(self, params):
            return Masked()

    assert torch.isinf(run_visits(T(), data, 2).tensors["model.mask"]).sum() == 3


def test_a_loss_of_many_numbers_is_refused_with_its_shape(data):
    class T(LineTask):
        def loss(self, model, batch, params):
            return (model(batch["x"]) - batch["y"]) ** 2

    with pytest.raises(TrialError, match=r"loss must be one number, but has the shape \[8, 1\]"):
        run_visits(T(), data, 1)


def test_a_metric_of_many_numbers_is_refused_with_its_name(data):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"score": torch.ones(3)}

    with pytest.raises(TrialError, match=r"score must be one number, but has the shape \[3\]"):
        run_visits(T(), data, 1).evaluate()


def task_returning(method: str, value: object) -> LineTask:
    return type("T", (LineTask,), {method: lambda self, *args: value})()


@pytest.mark.parametrize("value", [None, "net", lambda x: x, [nn.Linear(4, 1)]])
def test_a_model_must_be_a_module(data, value):
    with pytest.raises(UsageError, match=r"model must return an nn.Module, but returned"):
        run_visits(task_returning("model", value), data, 1)


@pytest.mark.parametrize("value", [None, [], "sgd", (None, None)])
def test_an_optimizer_must_be_one(data, value):
    with pytest.raises(CerebroError, match="optimizer"):
        run_visits(task_returning("optimizer", value), data, 1)


def test_an_optimizer_that_needs_a_closure_is_refused(data):
    class T(LineTask):
        def optimizer(self, model, params):
            return torch.optim.LBFGS(model.parameters())

    with pytest.raises(UsageError, match=r"LBFGS .* use it in a MiniBatchSpec"):
        run_visits(T(), data, 1)


def test_a_second_optimizer_is_not_taken_for_a_scheduler(data):
    class T(LineTask):
        def optimizer(self, model, params):
            return optim.SGD(model.parameters(), lr=0.1), optim.SGD(model.parameters(), lr=0.1)

    with pytest.raises(CerebroError, match="scheduler"):
        run_visits(T(), data, 2)


@pytest.mark.parametrize("value", [1.0, None])
def test_a_loss_must_be_a_tensor(data, value):
    with pytest.raises(CerebroError, match="loss must"):
        run_visits(task_returning("loss", value), data, 1)


def test_metrics_must_be_a_dict(data):
    framework = TorchFramework(task_returning("metrics", None), device="cpu")
    chain = run_visits(LineTask(), data, 1)
    with pytest.raises(CerebroError, match="metrics"):
        framework.evaluate(_evaluation(), data.open_shard("val", 0), chain.states[-1])


def _evaluation():
    from tests.unit.train.bare import make_eval

    return make_eval()


def test_an_unknown_moment_to_step_the_scheduler_is_refused(data):
    class T(LineTask):
        scheduler_step = "step"

        def optimizer(self, model, params):
            optimizer = super().optimizer(model, params)
            return optimizer, optim.lr_scheduler.StepLR(optimizer, 1)

    with pytest.raises(UsageError, match=r"scheduler_step must be .*but is 'step'"):
        run_visits(T(), data, 2)


@pytest.mark.parametrize("method", ["model", "optimizer", "loss"])
def test_a_task_without_a_method_says_which(data, method):
    from cerebro.task import Task

    body = {name: getattr(LineTask, name) for name in ("model", "optimizer", "loss")}
    del body[method]
    with pytest.raises(NotImplementedError, match=rf"Partial must define {method}\("):
        run_visits(type("Partial", (Task,), body)(), data, 1)


def test_a_state_of_another_model_is_refused_with_the_tensor_that_differs(data):
    class Wider(LineTask):
        def model(self, params):
            return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, 1))

    chain = run_visits(LineTask(), data, 1)
    wider = Chain(Wider(), data)
    wider.states = chain.states
    with pytest.raises(
        UsageError, match=r"model.0.weight as torch.float32 \[8, 4\].*has F32 \[16, 4\]"
    ):
        wider.run(1)


def test_a_module_added_while_training_is_not_lost_silently(data):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            if epoch == 0:
                model.add_module("late", nn.Linear(1, 1))

    with pytest.raises(UsageError, match="late"):
        run_visits(T(), data, 2)


def test_a_group_of_parameters_that_no_visit_could_make_again_is_refused_clearly(data):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            optimizer.add_param_group({"params": [nn.Parameter(torch.ones(1))]})

    with pytest.raises(UsageError, match="add_param_group must add parameters that the model has"):
        run_visits(T(), data, 1)


def test_groups_that_were_rebuilt_are_refused_clearly(data):
    class T(LineTask):
        def on_epoch_start(self, model, optimizer, params, epoch):
            optimizer.param_groups.clear()
            optimizer.add_param_group({"params": [*model[3].parameters()]})

    with pytest.raises(UsageError, match="param_groups must stay as optimizer"):
        run_visits(T(), data, 1)


def test_optimizer_state_that_belongs_to_no_parameter_is_refused_clearly(data):
    class Odd(optim.SGD):
        def step(self, closure=None):
            self.state["count"] = {"steps": 1}
            return super().step()

    class T(LineTask):
        def optimizer(self, model, params):
            return Odd(model.parameters(), lr=0.1)

    with pytest.raises(UsageError, match=r"belong to parameters.*key of type str"):
        run_visits(T(), data, 2)


@pytest.mark.parametrize("device", ["nonsense", "cuda:99"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UsageError, match=f"device must name a device.*{device}"):
        TorchFramework(LineTask(), device=device)
