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


class Borrowed(torch.autograd.Function):
    """Its gradients lie in one piece of memory of NumPy's."""

    @staticmethod
    def forward(ctx, a, b):
        return a + b

    @staticmethod
    def backward(ctx, grad):
        memory = grad.numpy().copy()
        return torch.from_numpy(memory), torch.from_numpy(memory)


USES = {
    "a sum": lambda a, b, c: a + (b + c),
    "a stack": lambda a, b, c: torch.stack([a, b, c]).sum(0),
    "joined": lambda a, b, c: torch.cat([a, b + c], 0) * 2,
    "one more axis": lambda a, b, c: (a.unsqueeze(0) + b.unsqueeze(0)).squeeze(0) + c,
    "flat": lambda a, b, c: (a.view(16) + b.view(16)).view(4, 4) * c,
    "transposed": lambda a, b, c: (a.t() + b.t()).t() * c,
    "used twice": lambda a, b, c: a @ b.t() @ a + b + c.expand(2, -1, -1).sum(0),
    "not used": lambda a, b, c: a + b,
    "borrowed": lambda a, b, c: Borrowed.apply(a, b) * c,
}


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
@pytest.mark.parametrize("use", USES.values(), ids=USES)
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
