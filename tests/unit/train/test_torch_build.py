"""Models built again for a hop: the same as the first time in all but their parameters."""

from __future__ import annotations

import copy
import random

import numpy as np
import pytest
import torch
from torch import nn, optim
from torch.optim import lr_scheduler

from cerebro.train.torch.build import Builder
from tests.unit.train.bare import LineTask, assert_equals_bare_loop, run_visits


class Pair(nn.Module):
    """Two layers, and a number that a subclass makes of their first weights."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 4)
        self.scale = self.make_scale()

    def make_scale(self):
        return 1.0

    def forward(self, x):
        return (self.second(torch.tanh(self.first(x))) * self.scale).sum(1, keepdim=True)


def of_an_element(pair):
    return pair.first.weight[0, 0].item()


def of_a_copy(pair):
    return copy.deepcopy(pair.first).weight.sum().item()


def of_a_list(pair):
    return torch.cat([pair.first.weight, pair.second.weight]).abs().max().item()


def of_a_nested_list(pair):
    return torch.linalg.multi_dot([pair.first.weight, pair.second.weight]).sum().item()


def of_its_data(pair):
    return float(pair.first.weight.data.sum())


def of_numpy(pair):
    return float(pair.first.weight.detach().numpy().sum())


def of_a_list_of_values(pair):
    return pair.first.weight.tolist()[0][0]


def of_a_state_dict(pair):
    return float(pair.state_dict()["first.weight"].sum())


def of_a_forward_pass(pair):
    return pair.first(torch.ones(1, 4)).sum().item()


def of_a_draw(pair):
    return torch.rand(1).item()


def of_a_drawn_fill(pair):
    return torch.empty(1).uniform_().item()


def of_a_generator(pair):
    return torch.rand(1, generator=torch.Generator().manual_seed(3)).item()


def of_python_and_numpy(pair):
    return random.random() + np.random.rand()


def swallowing_errors(pair):
    try:
        return pair.first.weight[0, 0].item()
    except Exception:
        return 0.0


SCALES = [
    of_an_element,
    of_a_copy,
    of_a_list,
    of_a_nested_list,
    of_its_data,
    of_numpy,
    of_a_list_of_values,
    of_a_state_dict,
    of_a_forward_pass,
    of_a_draw,
    of_a_drawn_fill,
    of_a_generator,
    of_python_and_numpy,
    swallowing_errors,
]


@pytest.mark.parametrize("scale", SCALES, ids=lambda scale: scale.__name__)
def test_numbers_made_of_initial_weights_are_the_same_after_a_hop(scale):
    class Scaled(Pair):
        make_scale = scale

    class T(LineTask):
        def model(self, params):
            return Scaled()

    builder = Builder(T(), torch.device("cpu"))
    assert builder.skeleton(0, 3, {}).scale == builder.model(0, 3, {}).scale


INITS = {
    "uniform": lambda w: nn.init.uniform_(w),
    "normal": lambda w: nn.init.normal_(w),
    "kaiming": lambda w: nn.init.kaiming_normal_(w),
    "xavier": lambda w: nn.init.xavier_uniform_(w),
    "orthogonal": lambda w: nn.init.orthogonal_(w),
    "trunc normal": lambda w: nn.init.trunc_normal_(w),
    "sparse": lambda w: nn.init.sparse_(w, 0.5),
    "eye": lambda w: nn.init.eye_(w),
    "dirac data": lambda w: w.data.normal_(),
    "copied": lambda w: w.data.copy_(torch.ones(4, 4)),
}


@pytest.mark.parametrize("name", INITS)
def test_any_initialisation_equals_the_plain_loop(data, name):
    class T(LineTask):
        def model(self, params):
            model = nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 1))
            INITS[name](model[0].weight)
            return model

    assert_equals_bare_loop(T(), data, visits=4)


def test_an_embedding_with_padding_equals_the_plain_loop(data):
    class Embedded(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.line = nn.Embedding(5, 4, padding_idx=0), nn.Linear(4, 1)

        def forward(self, x):
            return self.line(self.table((x[:, 0] > 0).long()) + x)

    class T(LineTask):
        def model(self, params):
            return Embedded()

    assert_equals_bare_loop(T(), data)


def test_a_copied_network_travels_on_its_own(data):
    class Target(nn.Module):
        def __init__(self):
            super().__init__()
            self.online = nn.Linear(4, 1)
            self.target = copy.deepcopy(self.online)
            self.target.requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for slow, fast in zip(
                    self.target.parameters(), self.online.parameters(), strict=True
                ):
                    slow.lerp_(fast, 0.1)
            return self.online(x) + 0.1 * self.target(x)

    class T(LineTask):
        def model(self, params):
            return Target()

    assert_equals_bare_loop(T(), data)


def test_an_optimizer_draws_the_same_numbers_in_every_visit(data):
    drawn = []

    class T(LineTask):
        def optimizer(self, model, params):
            drawn.append(torch.rand(1).item() + np.random.rand() + random.random())
            optimizer = optim.SGD(model.parameters(), lr=0.1)
            return optimizer, lr_scheduler.LambdaLR(optimizer, lambda epoch: drawn[-1] ** epoch)

    run_visits(T(), data, 3)
    assert len(set(drawn)) == 1
