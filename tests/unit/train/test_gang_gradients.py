"""Gradients that are added up while others are still on their way, whatever they share."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from cerebro.train.gang import gradients
from cerebro.train.gang.gradients import BucketMemory, GradientSync

RANKS = 3


class Echo:
    """A gang all of whose ranks have the same gradients, and which adds them up at once.

    So whatever reads a gradient after it was given away gets another number.
    """

    def __init__(self):
        self.sent = []

    def add_up(self, tensor):
        self.sent.append(tensor.numel())
        tensor.mul_(RANKS)

    def finish(self):
        pass


def added(a, b, c):
    return a + b + c


def broadcast(a, b, c):
    return (a + b.unsqueeze(0) + c.reshape(1, 4, 4)).squeeze(0)


def stacked(a, b, c):
    return torch.stack([a, b, c]).sum(0)


def joined(a, b, c):
    return torch.cat([a, b + c], 0) * 2


def chained(a, b, c):
    return a + (b + c.t().t())


def repeated(a, b, c):
    return a @ b.t() @ a + b + c.expand(2, -1, -1).sum(0)


def transposed(a, b, c):
    return a.t() + b.t() * c.t()


def one_that_is_not_used(a, b, c):
    return a + b


USES = [added, broadcast, stacked, joined, chained, repeated, transposed, one_that_is_not_used]


def step(use, params, sync=None):
    loss = (use(*params) * torch.arange(4.0)).sum()
    if sync is not None:
        sync.begin(loss.detach())
    loss.backward()
    if sync is not None:
        assert sync.finish() == RANKS * loss
    found = [None if param.grad is None else param.grad.clone() for param in params]
    for param in params:
        param.grad = None
    return found


@pytest.fixture
def params():
    generator = torch.Generator().manual_seed(0)
    first, second, third = (torch.randn(4, 4, generator=generator) for _ in range(3))
    return [nn.Parameter(first), nn.Parameter(second), nn.Parameter(third.t())]


@pytest.fixture(params=["packed", "by itself"])
def _kind(request, monkeypatch):
    if request.param == "by itself":
        monkeypatch.setattr(gradients, "_LARGE_BYTES", 1)


@pytest.mark.usefixtures("_kind")
@pytest.mark.parametrize("use", USES)
def test_gradients_that_share_memory_are_added_up_once_each(params, use):
    alone = step(use, params)
    sync = GradientSync(Echo(), params, BucketMemory())
    for _ in range(2):
        for ours, theirs in zip(step(use, params, sync), alone, strict=True):
            assert (ours is None) == (theirs is None)
            assert ours is None or torch.equal(ours, RANKS * theirs)
    sync.close()


def test_a_large_gradient_stays_where_it_is(monkeypatch):
    monkeypatch.setattr(gradients, "_LARGE_BYTES", 64)
    layer = nn.Linear(8, 4)
    places = []
    layer.weight.register_post_accumulate_grad_hook(lambda p: places.append(p.grad.data_ptr()))
    sync = GradientSync(Echo(), list(layer.parameters()), BucketMemory())
    loss = layer(torch.ones(2, 8)).sum()
    sync.begin(loss.detach())
    loss.backward()
    sync.finish()
    sync.close()
    assert places == [layer.weight.grad.data_ptr()]
    assert torch.equal(layer.weight.grad, torch.full((4, 8), 2.0 * RANKS))


def test_small_gradients_travel_together_past_large_ones(monkeypatch):
    monkeypatch.setattr(gradients, "_LARGE_BYTES", 4 * 8 * 8)
    layers = [nn.Linear(8, 8) for _ in range(5)]
    params = [param for layer in layers for param in layer.parameters()]
    echo = Echo()
    sync = GradientSync(echo, params, BucketMemory())
    loss = nn.Sequential(*layers)(torch.ones(2, 8)).sum()
    sync.begin(loss.detach())
    loss.backward()
    sync.finish()
    sync.close()
    # All biases, the loss and a flag for each parameter come last.
    assert echo.sent == [64] * 5 + [5 * 16 + 1 + 10]
