"""The network that the race on a GPU is run with, and all that both sides do with it.

A residual network of seven convolutions. Pictures are bytes until a step takes them; in training
each is shifted and perhaps mirrored there, on the device.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

CLASSES = 10
#: A picture moves by up to so many pixels along both axes.
SHIFT = 2
#: The part of the steps in which the rate rises, and what it begins with.
RISE, BEGIN = 0.25, 0.2
SMOOTHING = 0.1
#: Logits are this much smaller than they come out of the last layer.
SCALE = 0.125
MOMENTUM = 0.9
#: Of all bytes of the pictures, roughly.
_MEAN, _STD = 121.0, 64.0

Norm = Callable[[int], nn.Module]


class WideNorm(nn.BatchNorm2d):
    """In float32 whatever comes in: what a stack of models needs under autocast."""

    def forward(self, input: Tensor) -> Tensor:
        return super().forward(input.float())


class Block(nn.Module):
    """A convolution that is pooled, and one around which there is a way past."""

    def __init__(self, inputs: int, width: int, norm: Norm) -> None:
        super().__init__()
        self.first = nn.Conv2d(inputs, width, 3, padding=1, bias=False)
        self.pool = nn.MaxPool2d(2)
        self.first_norm = norm(width)
        self.second = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.second_norm = norm(width)

    def forward(self, x: Tensor) -> Tensor:
        x = functional.relu(self.first_norm(self.pool(self.first(x))))
        return x + functional.relu(self.second_norm(self.second(x)))


class Net(nn.Module):
    """A stem, blocks of these widths, the largest of each channel, and a linear layer."""

    def __init__(self, widths: Sequence[int], norm: Norm = nn.BatchNorm2d) -> None:
        super().__init__()
        stem, *others = widths
        self.stem = nn.Conv2d(3, stem, 3, padding=1, bias=False)
        self.norm = norm(stem)
        self.blocks = nn.Sequential(
            *(Block(before, after, norm) for before, after in zip(widths, others, strict=False))
        )
        self.head = nn.Linear(widths[-1], CLASSES, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        x = self.blocks(functional.relu(self.norm(self.stem(x))))
        scores: Tensor = self.head(x.amax((2, 3)))
        return SCALE * scores


def as_numbers(x: Tensor) -> Tensor:
    """Bytes as numbers with mean 0 and variance 1."""
    return (x.float() - _MEAN) / _STD


def change(x: Tensor) -> Tensor:
    """Each picture shifted, with the border repeated, and half of them mirrored."""
    rows, channels, height, width = x.shape
    down, right, mirror = (torch.rand(rows, 1, device=x.device) for _ in range(3))
    ys = _shifted(height, down)
    xs = _shifted(width, right)
    xs = torch.where(mirror < 0.5, width - 1 - xs, xs)
    index = (ys[:, :, None] * width + xs[:, None, :]).reshape(rows, 1, height * width)
    return x.flatten(2).gather(2, index.expand(-1, channels, -1)).reshape(x.shape)


def _shifted(size: int, draw: Tensor) -> Tensor:
    moved = torch.floor(draw * (2 * SHIFT + 1)).long() - SHIFT
    return (torch.arange(size, device=draw.device) + moved).clamp(0, size - 1)


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Of a training batch, changed at random, or of one to judge by."""
    pictures = as_numbers(change(x) if model.training else x)
    return functional.cross_entropy(model(pictures), y, label_smoothing=SMOOTHING)


def accuracy_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return (model(as_numbers(x)).argmax(1) == y).float().mean()


def make_optimizer(
    model: nn.Module, params: Mapping[str, Any], steps: int
) -> tuple[torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler]:
    """SGD with a rate that rises and falls, step by step."""
    optimizer = torch.optim.SGD(
        model.parameters(),
        lr=params["lr"],
        momentum=MOMENTUM,
        nesterov=True,
        weight_decay=params["weight_decay"],
    )
    return optimizer, torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: part(step, steps))


def part(step: int, steps: int) -> float:
    """Of the highest rate.

    >>> [round(part(step, 8), 2) for step in range(9)]
    [0.2, 0.6, 1.0, 0.83, 0.67, 0.5, 0.33, 0.17, 0.0]
    """
    rise = max(1, math.ceil(RISE * steps))
    if step < rise:
        return BEGIN + (1 - BEGIN) * step / rise
    return max(0.0, (steps - step) / max(1, steps - rise))
