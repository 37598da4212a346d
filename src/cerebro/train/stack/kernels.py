"""Triton kernels for stacks on CUDA: an optimizer's update in one pass, and dropout masks."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from cerebro.train.stack.optim import Features, Rule, Vectors, update_all

triton: Any = importlib.import_module("triton")
tl: Any = importlib.import_module("triton.language")

if TYPE_CHECKING:
    tensor = Any
    constexpr = Any
else:
    tensor = tl.tensor
    constexpr = tl.constexpr

_BLOCK = 1024


def _jit(function: Callable[..., Any]) -> Any:
    return triton.jit(function)


@_jit
def _sgd_kernel(
    param: tensor,
    grad: tensor,
    kept: tensor,
    lr: tensor,
    momentum: tensor,
    decay: tensor,
    size: tensor,
    MOMENTUM: constexpr,
    NESTEROV: constexpr,
    DECAY: constexpr,
    MAXIMIZE: constexpr,
    BLOCK: constexpr,
) -> None:
    member = tl.program_id(1)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < size
    at = member.to(tl.int64) * size + offset
    p = tl.load(param + at, inside)
    g = tl.load(grad + at, inside).to(tl.float32)
    if MAXIMIZE:
        g = -g
    if DECAY:
        g += tl.load(decay + member) * p
    if MOMENTUM:
        m = tl.load(momentum + member)
        k = m * tl.load(kept + at, inside) + g
        tl.store(kept + at, k, inside)
        g = g + m * k if NESTEROV else k
    tl.store(param + at, p - tl.load(lr + member) * g, inside)


@_jit
def _adam_kernel(
    param: tensor,
    grad: tensor,
    mean: tensor,
    square: tensor,
    lr: tensor,
    rate: tensor,
    root: tensor,
    beta1: tensor,
    beta2: tensor,
    eps: tensor,
    decay: tensor,
    size: tensor,
    DECAY: constexpr,
    DECOUPLED: constexpr,
    MAXIMIZE: constexpr,
    BLOCK: constexpr,
) -> None:
    member = tl.program_id(1)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = offset < size
    at = member.to(tl.int64) * size + offset
    p = tl.load(param + at, inside)
    g = tl.load(grad + at, inside).to(tl.float32)
    if MAXIMIZE:
        g = -g
    if DECAY:
        if DECOUPLED:
            p *= 1 - tl.load(lr + member) * tl.load(decay + member)
        else:
            g += tl.load(decay + member) * p
    b1 = tl.load(beta1 + member)
    b2 = tl.load(beta2 + member)
    m = tl.load(mean + at, inside)
    v = tl.load(square + at, inside)
    m += (1 - b1) * (g - m)
    v += (1 - b2) * (g * g - v)
    tl.store(mean + at, m, inside)
    tl.store(square + at, v, inside)
    down = tl.sqrt(v) / tl.load(root + member) + tl.load(eps + member)
    tl.store(param + at, p - tl.load(rate + member) * (m / down), inside)


@_jit
def _mask_kernel(
    out: tensor,
    seeds: tensor,
    step: tensor,
    layer: tensor,
    keep: tensor,
    size: tensor,
    BLOCK: constexpr,
) -> None:
    member = tl.program_id(1)
    offset = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # A stream for each member, step and layer.
    stream = tl.load(seeds + member) + (tl.load(step) * 1024 + layer) * 0x9E3779B97F4A7C1
    kept = tl.rand(stream, offset) < keep
    at = member.to(tl.int64) * size + offset
    tl.store(out + at, tl.where(kept, 1.0 / keep, 0.0), offset < size)


def draw_masks(like: Tensor, keep: float, layer: int, seeds: Tensor, step: Tensor) -> Tensor:
    """Dropout masks of all members: zero, or what makes up for the zeros."""
    out = torch.empty_like(like)
    _mask_kernel[_grid(out)](out, seeds, step, layer, keep, out[0].numel(), BLOCK=_BLOCK)
    return out


def _grid(param: Tensor) -> tuple[int, int]:
    return triton.cdiv(param[0].numel(), _BLOCK), len(param)


def _sgd(param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features) -> None:
    _sgd_kernel[_grid(param)](
        param,
        grad.contiguous(),
        slots.get("momentum_buffer", param),
        numbers["lr"],
        numbers["momentum"],
        numbers["weight_decay"],
        param[0].numel(),
        MOMENTUM="momentum" in features,
        NESTEROV="nesterov" in features,
        DECAY="weight_decay" in features,
        MAXIMIZE="maximize" in features,
        BLOCK=_BLOCK,
    )


def _adam(
    param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features
) -> None:
    _adam_kernel[_grid(param)](
        param,
        grad.contiguous(),
        slots["exp_avg"],
        slots["exp_avg_sq"],
        numbers["lr"],
        numbers["rate"],
        numbers["root"],
        numbers["beta1"],
        numbers["beta2"],
        numbers["eps"],
        numbers["weight_decay"],
        param[0].numel(),
        DECAY="weight_decay" in features,
        DECOUPLED="decoupled_weight_decay" in features,
        MAXIMIZE="maximize" in features,
        BLOCK=_BLOCK,
    )


def update_on_cuda(
    rule: Rule,
    features: Features,
    tensors: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    numbers: Mapping[str, Vectors],
) -> None:
    """Update every parameter, like `update_all`."""
    update = {"SGD": _sgd, "Adam": _adam}.get(rule.name)
    update_all(rule, features, tensors, grads, numbers, update)
