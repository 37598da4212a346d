"""A chain of visits with a hop after each equals one plain loop, bit for bit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from tests.unit.train.bare import LineTask, assert_equals_bare_loop, run_visits


class Lion(optim.Optimizer):
    """Replaces its state tensor instead of changing it."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                momentum = state.get("momentum", torch.zeros_like(p))
                p.sub_((0.9 * momentum + 0.1 * p.grad).sign(), alpha=group["lr"])
                state["momentum"] = 0.99 * momentum + 0.01 * p.grad


class PingPong(optim.Optimizer):
    """Swaps two state tensors at every step."""

    def __init__(self, params, lr=0.01):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state.setdefault("new", torch.zeros_like(p))
                state.setdefault("old", torch.zeros_like(p))
                state["old"].copy_(p.grad)
                state["new"], state["old"] = state["old"], state["new"]
                p.sub_(state["new"] + 0.5 * state["old"], alpha=group["lr"])


class Late(optim.Optimizer):
    """Has no state in its first five steps: in the middle of the second visit it appears."""

    def __init__(self, params, lr=0.05):
        super().__init__(params, {"lr": lr, "count": 0})

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["count"] += 1
            for p in group["params"]:
                step = p.grad
                if group["count"] > 4:
                    mean = self.state[p].setdefault("mean", torch.zeros_like(p))
                    step = mean.mul_(0.9).add_(step)
                p.sub_(step, alpha=group["lr"])


OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda ps: optim.SGD(ps, lr=0.05),
    "sgd momentum": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "sgd nesterov": lambda ps: optim.SGD(ps, lr=0.05, momentum=0.9, nesterov=True),
    "adam": lambda ps: optim.Adam(ps, lr=0.01),
    "adam amsgrad": lambda ps: optim.Adam(ps, lr=0.01, amsgrad=True),
    "adam foreach": lambda ps: optim.Adam(ps, lr=0.01, foreach=True),
    "adam fused": lambda ps: optim.Adam(ps, lr=0.01, fused=True),
    "adam tensor lr": lambda ps: optim.Adam(ps, lr=torch.tensor(0.01)),
    "adamw": lambda ps: optim.AdamW(ps, lr=0.01),
    "nadam": lambda ps: optim.NAdam(ps, lr=0.01),
    "radam": lambda ps: optim.RAdam(ps, lr=0.01),
    "adadelta": lambda ps: optim.Adadelta(ps),
    "adamax": lambda ps: optim.Adamax(ps),
    "rprop": lambda ps: optim.Rprop(ps),
    "rmsprop": lambda ps: optim.RMSprop(ps, lr=0.01, momentum=0.5, centered=True),
    "adagrad": lambda ps: optim.Adagrad(ps, lr=0.05),
    "asgd": lambda ps: optim.ASGD(ps, lr=0.05),
    "replaces its state": Lion,
    "swaps its state": PingPong,
    "state appears late": Late,
}

SCHEDULERS: dict[str, tuple[str, Any]] = {
    "step": ("epoch", lambda o: lr_scheduler.StepLR(o, 2, gamma=0.3)),
    "multistep": ("epoch", lambda o: lr_scheduler.MultiStepLR(o, [1, 2])),
    "exponential": ("epoch", lambda o: lr_scheduler.ExponentialLR(o, 0.7)),
    "lambda": ("epoch", lambda o: lr_scheduler.LambdaLR(o, lambda epoch: 0.5**epoch)),
    "cosine": ("epoch", lambda o: lr_scheduler.CosineAnnealingLR(o, 3)),
    "restarts": ("epoch", lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2)),
    "plateau by batch": ("batch", lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0)),
    "plateau": ("epoch", lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0, threshold=0.9)),
    "one cycle": ("batch", lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=30)),
    "cyclic": ("batch", lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=5)),
    "cosine by batch": ("batch", lambda o: lr_scheduler.CosineAnnealingLR(o, 18)),
    "sequential": (
        "batch",
        lambda o: lr_scheduler.SequentialLR(
            o, [lr_scheduler.LinearLR(o, 0.1), lr_scheduler.ExponentialLR(o, 0.9)], [4]
        ),
    ),
    "chained": (
        "epoch",
        lambda o: lr_scheduler.ChainedScheduler(
            [lr_scheduler.ConstantLR(o, 0.5, 2), lr_scheduler.ExponentialLR(o, 0.9)]
        ),
    ),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_an_optimizer_goes_on_where_it_was(data, name):
    class T(LineTask):
        def optimizer(self, model, params):
            return OPTIMIZERS[name](model.parameters())

    assert_equals_bare_loop(T(), data)


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_goes_on_where_it_was(data, name):
    when, make = SCHEDULERS[name]

    class T(LineTask):
        scheduler_step = when

        def optimizer(self, model, params):
            optimizer = optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
            return optimizer, make(optimizer)

    assert_equals_bare_loop(T(), data)


def test_the_learning_rate_falls_when_the_scheduler_says_so(data):
    class T(LineTask):
        def optimizer(self, model, params):
            optimizer = optim.SGD(model.parameters(), lr=1e-3)
            return optimizer, lr_scheduler.StepLR(optimizer, 1, gamma=0.1)

    chain = run_visits(T(), data, 5)
    rates = [state.meta["groups"][0]["lr"] for state in chain.states]
    assert rates == pytest.approx([1e-3, 1e-4, 1e-4, 1e-5, 1e-5])


def test_parameter_groups_keep_their_own_settings(data):
    class T(LineTask):
        def optimizer(self, model, params):
            first, second = model[0].parameters(), model[3].parameters()
            return optim.Adam(
                [{"params": first, "lr": 0.01}, {"params": second, "betas": (0.5, 0.9)}], lr=0.02
            )

    assert_equals_bare_loop(T(), data)


class Unfreezing(LineTask):
    """Trains its last layer first; the first layer joins after an epoch."""

    def make(self, params, lr):
        return optim.Adam(params, lr=lr)

    def optimizer(self, model, params):
        model[0].requires_grad_(False)
        return self.make(model[3].parameters(), 0.01)

    def on_epoch_start(self, model, optimizer, params, epoch):
        if epoch == 1:
            model[0].requires_grad_(True)
            optimizer.add_param_group({"params": [*model[0].parameters()], "lr": 0.002})


class ByName(Unfreezing):
    def optimizer(self, model, params):
        model[0].requires_grad_(False)
        return self.make(list(model[3].named_parameters()), 0.01)

    def on_epoch_start(self, model, optimizer, params, epoch):
        if epoch == 1:
            model[0].requires_grad_(True)
            named = list(model[0].named_parameters())
            optimizer.add_param_group({"params": named, "lr": 0.002})


class Scheduled(Unfreezing):
    def optimizer(self, model, params):
        optimizer = super().optimizer(model, params)
        return optimizer, lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)


class Twice(Unfreezing):
    """Weight and bias join one after the other."""

    def on_epoch_start(self, model, optimizer, params, epoch):
        if epoch < 2:
            param = [model[0].weight, model[0].bias][epoch]
            param.requires_grad_(True)
            optimizer.add_param_group({"params": param, "betas": (0.5, 0.9)})


@pytest.mark.parametrize("task", [Unfreezing(), ByName(), Twice(), Scheduled()])
def test_parameter_groups_added_in_a_callback_travel(data, task):
    assert_equals_bare_loop(task, data, visits=8)


def test_an_added_group_keeps_its_own_settings(data):
    chain = run_visits(Unfreezing(), data, 6)
    assert [[g["lr"] for g in state.meta["groups"]] for state in chain.states] == [
        *[[0.01]] * 2,
        *[[0.01, 0.002]] * 4,
    ]
    assert chain.evaluate().rows == 11


def test_settings_changed_in_a_callback_travel(data):
    class T(LineTask):
        def on_epoch_end(self, model, optimizer, params, epoch):
            optimizer.param_groups[0]["lr"] *= 0.5

    assert_equals_bare_loop(T(), data)
    assert run_visits(T(), data, 5).states[-1].meta["groups"][0]["lr"] == 0.05 / 4


def test_parameters_that_only_the_optimizer_knows_travel(data):
    class T(LineTask):
        def optimizer(self, model, params):
            model.__dict__["temperature"] = nn.Parameter(torch.ones(1))
            return optim.Adam([*model.parameters(), model.temperature], lr=0.1)

        def loss(self, model, batch, params):
            return ((model(batch["x"]) * model.temperature - batch["y"]) ** 2).mean()

    first, last = (run_visits(T(), data, visits).tensors["~extra.0"].clone() for visits in (1, 4))
    assert abs(first - 1).item() > 1e-3
    assert abs(last - first).item() > 1e-3


def test_a_parameter_list_named_extra_is_not_mistaken_for_those(data):
    class M(nn.Module):
        def __init__(self):
            super().__init__()
            self.extra = nn.ParameterList([nn.Parameter(torch.ones(4, 1))])
            self.__dict__["other"] = nn.Parameter(torch.ones(4, 4))

        def forward(self, x):
            return x @ self.other @ self.extra[0]

    class T(LineTask):
        def model(self, params):
            return M()

        def optimizer(self, model, params):
            return optim.Adam([*model.parameters(), model.other], lr=0.1)

    state = run_visits(T(), data, 3).tensors
    assert sorted(tuple(t.shape) for n, t in state.items() if n.endswith("exp_avg")) == [
        (4, 1),
        (4, 4),
    ]


def test_a_state_that_cannot_travel_is_named(data):
    class Odd(optim.SGD):
        def step(self, closure=None):
            self.param_groups[0]["odd"] = {1, 2}
            return super().step()

    class T(LineTask):
        def optimizer(self, model, params):
            return Odd(model.parameters(), lr=0.1)

    with pytest.raises(ValueError, match=r"param_groups must hold numbers.*has a set"):
        run_visits(T(), data, 1)
