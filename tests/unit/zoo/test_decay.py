from __future__ import annotations

import pytest
import torch
from torch import nn

import cerebro
from cerebro.errors import UsageError
from cerebro.zoo import decayed_parameters, parameter_groups


def test_all_kernels_and_nothing_else_are_decayed():
    model = cerebro.zoo.resnet_small()
    names = {id(p): name for name, p in model.named_parameters()}
    decayed = {names[id(p)] for p in decayed_parameters(model)}
    assert decayed == {name for name, p in model.named_parameters() if p.ndim > 1}


def test_a_kernel_that_two_layers_share_is_there_once():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    assert len(decayed_parameters(nn.Sequential(first, second))) == 1


@pytest.mark.parametrize(("name", "shape", "decay"), [
    ("resnet_small", (32, 32, 3), 1e-4),
    ("resnet50", (224, 224, 3), 1e-4),
    ("resnet50", (32, 32, 3), 0.0),
    ("cnn", (32, 32, 3), 0.0),
])  # fmt: skip
def test_the_l2_that_is_documented_becomes_twice_as_much_weight_decay(name, shape, decay):
    groups = parameter_groups(cerebro.zoo.build(name, shape))
    assert groups[0]["weight_decay"] == pytest.approx(decay, abs=1e-15)
    assert len(groups) == (2 if decay else 1)
    assert groups[-1]["weight_decay"] == 0


def test_a_model_around_it_changes_nothing():
    model = nn.Sequential(nn.Identity(), cerebro.zoo.resnet_small(l2_reg=1e-3))
    assert [g["weight_decay"] for g in parameter_groups(model, weight_decay=1.0)] == [1.002, 1.0]


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.Adam], ids=["sgd", "adam"])
def test_a_step_is_the_one_of_l2_in_the_loss(rule):
    def one_step(is_in_loss: bool) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 2)).double()
        groups = parameter_groups(model, l2_reg=0.0 if is_in_loss else 0.05)
        optimizer = rule(groups, lr=0.1)
        for _ in range(3):
            loss = model(torch.ones(4, 6).double()).square().mean()
            if is_in_loss:
                loss = loss + 0.05 * sum(w.square().sum() for w in decayed_parameters(model))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return [p.detach() for p in model.parameters()]

    for ours, theirs in zip(one_step(False), one_step(True), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{"l2_reg": -1}, {"weight_decay": float("nan")}], ids=str)
def test_numbers_that_are_no_decay_are_refused(options):
    with pytest.raises(UsageError, match=">= 0"):
        parameter_groups(nn.Linear(1, 1), **options)
