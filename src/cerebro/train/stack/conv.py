"""Convolution for a stack of models: each with its own weights and batch, all run as one.

`conv2d` takes the place of `torch.nn.functional.conv2d` in a model that runs under
`torch.func.vmap`. There it becomes one stacked operator for all members, which on CUDA is an
implicit GEMM (conv_triton); elsewhere, and for what that does not cover, PyTorch's own
convolution. Outside vmap it is an ordinary convolution. Activations lie channels-last.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from cerebro.train.stack.conv_ops import (
    CHANNELS_LAST,
    FILTERS_LAST,
    INVERSE,
    Ints,
    backward,
    forward,
    packed,
    stacked_conv2d,
    stacked_input_grad,
    stacked_sum,
    stacked_weight_grad,
)

Dims = Sequence[int | None]


def conv2d(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    stride: int | Ints = 1,
    padding: int | Ints | str = 0,
    dilation: int | Ints = 1,
    groups: int = 1,
) -> Tensor:
    """What `torch.nn.functional.conv2d` computes, with its arguments."""
    kind = x.device.type
    if torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        x, weight, bias = _cast(x, dtype), _cast(weight, dtype), _cast(bias, dtype)
    if x.dim() not in (3, 4) or weight.dim() != 4 or x.size(-3) != weight.size(1) * groups:
        shapes = f"{tuple(x.shape)} and {tuple(weight.shape)}"
        raise RuntimeError(f"images and filters must fit for conv2d, but got {shapes}")
    if x.dtype != weight.dtype or (bias is not None and bias.dtype != x.dtype):
        raise RuntimeError(f"images are {x.dtype}, but weight is {weight.dtype}, or bias is not")
    single = x.dim() == 3
    strides, dilations = _pair(stride), _pair(dilation)
    x, pads = _resolve(x.unsqueeze(0) if single else x, weight, padding, strides, dilations)
    tf32 = x.dtype == torch.float32 and kind == "cuda" and _allows_tf32()
    out: Tensor = _call(_Conv, x, weight, bias, strides, pads, dilations, groups, tf32)
    return out.squeeze(0) if single else out


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """As autocast does: floating point but not double precision."""
    keep = value is None or value.dtype == torch.float64 or not value.is_floating_point()
    return value if keep else value.to(dtype)


def _pair(value: int | Ints) -> tuple[int, int]:
    return (value, value) if isinstance(value, int) else (value[0], value[-1])


def _resolve(
    x: Tensor, weight: Tensor, padding: int | Ints | str, stride: Ints, dilation: Ints
) -> tuple[Tensor, tuple[int, int]]:
    """Padding as numbers; "same" with an even filter pads the images one more at the end."""
    if not isinstance(padding, str):
        return x, _pair(padding)
    if padding == "valid":
        return x, (0, 0)
    if padding != "same" or tuple(stride) != (1, 1):
        raise RuntimeError(f"padding {padding!r} with stride {tuple(stride)} is not supported")
    high, wide = (d * (k - 1) for k, d in zip(weight.shape[2:], dilation, strict=True))
    if high % 2 or wide % 2:
        x = functional.pad(x, (0, wide % 2, 0, high % 2))
    return x, (high // 2, wide // 2)


def _allows_tf32() -> bool:
    """Whether PyTorch's own convolutions may use TF32 right now."""
    cudnn: Any = torch.backends.cudnn
    try:
        return bool(cudnn.allow_tf32)
    except RuntimeError:  # set by newer means, and not the same for all that cuDNN does
        return bool(cudnn.conv.fp32_precision == "tf32")


# All three are linear in both tensors, so each one's gradients are the other two. Each takes one
# model's tensors and, under vmap, a stack's.


def _call(function: Any, *given: Any) -> Any:
    return function.apply(*given)


def _is_one(dims: Dims, given: tuple[Any, ...]) -> bool:
    return bool(given[0].dim() - (dims[0] is not None) == 4)


def _batch(
    function: Any, orders: tuple[Any, ...], size: int, dims: Dims, given: tuple[Any, ...]
) -> tuple[Any, int]:
    """Of one model's tensors a stack's; of a stack's those of one with more members."""
    one = _is_one(dims, given)
    laid = [
        _stack(value, dim, size, order if one else None)
        for value, dim, order in zip(given[:3], dims, orders, strict=False)
    ]
    if one:
        return _call(function, *laid, *given[3:]), 0
    flat = [value.flatten(0, 1) if isinstance(value, Tensor) else value for value in laid]
    out = _call(function, *flat, *given[3:])
    return out.view(size, -1, *out.shape[1:]), 0


def _stack(value: Any, dim: int | None, members: int, order: tuple[int, ...] | None) -> Any:
    """With the members in front; laid out for the kernels here, where a compiler can fuse that."""
    if not isinstance(value, Tensor):
        return value
    value = value.movedim(dim, 0) if dim is not None else value.expand(members, *value.shape)
    if order is None or not value.is_cuda:
        return value
    return packed(value, order).permute(INVERSE[order])


class _Function(torch.autograd.Function):
    """Saves its two tensors for the way back."""

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])
        ctx.how = inputs[-5:]


class _Conv(_Function):
    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
        if x.dim() == 4:
            return forward(x, w, bias, how)
        out: Tensor = stacked_conv2d(x, w, bias, *how)
        return out

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Any, ...]:
        (x, w), needs, how = ctx.saved_tensors, ctx.needs_input_grad, ctx.how
        by_x = _call(_InputGrad, g, w, x.shape[-2:], *how) if needs[0] else None
        by_w = _call(_WeightGrad, g, x, w.shape[-2:], *how) if needs[1] else None
        return by_x, by_w, _call(_Sum, g) if needs[2] else None, *[None] * 5

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> tuple[Any, int]:
        if _is_one(dims, given) and dims[1] is None and dims[2] is None:
            return _merged(_Conv, dims, given)
        return _batch(_Conv, (CHANNELS_LAST, CHANNELS_LAST, None), info.batch_size, dims, given)


class _InputGrad(_Function):
    @staticmethod
    def forward(g: Tensor, w: Tensor, size: Ints, *how: Any) -> Tensor:
        if g.dim() == 4:
            return backward(g, None, w, size, how)
        out: Tensor = stacked_input_grad(g, w, size, *how)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        (g, w), needs, how = ctx.saved_tensors, ctx.needs_input_grad, ctx.how
        by_g = _call(_Conv, v, w, None, *how) if needs[0] else None
        by_w = _call(_WeightGrad, g, v, w.shape[-2:], *how) if needs[1] else None
        return by_g, by_w, *[None] * 6

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> tuple[Any, int]:
        if _is_one(dims, given) and dims[1] is None:
            return _merged(_InputGrad, dims, given)
        orders = (CHANNELS_LAST, FILTERS_LAST, None)
        return _batch(_InputGrad, orders, info.batch_size, dims, given)


class _WeightGrad(_Function):
    @staticmethod
    def forward(g: Tensor, x: Tensor, size: Ints, *how: Any) -> Tensor:
        if g.dim() == 4:
            return backward(g, x, None, size, how)
        out: Tensor = stacked_weight_grad(g, x, size, *how)
        return out

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> tuple[Any, ...]:
        (g, x), needs, how = ctx.saved_tensors, ctx.needs_input_grad, ctx.how
        by_g = _call(_Conv, x, v, None, *how) if needs[0] else None
        by_x = _call(_InputGrad, g, v, x.shape[-2:], *how) if needs[1] else None
        return by_g, by_x, *[None] * 6

    @staticmethod
    def vmap(info: Any, dims: Dims, *given: Any) -> tuple[Any, int]:
        orders = (CHANNELS_LAST, CHANNELS_LAST, None)
        return _batch(_WeightGrad, orders, info.batch_size, dims, given)


class _Sum(torch.autograd.Function):
    """Of images over all but their channels: the gradient by a bias."""

    @staticmethod
    def forward(g: Tensor) -> Tensor:
        if g.dim() == 4 or not g.is_cuda:
            return g.sum((-4, -2, -1))
        out: Tensor = stacked_sum(g)
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
        ctx.shape = inputs[0].shape

    @staticmethod
    def backward(ctx: Any, v: Tensor) -> Tensor:
        return v[..., None, :, None, None].expand(ctx.shape)

    @staticmethod
    def vmap(info: Any, dims: Dims, g: Tensor) -> tuple[Any, int]:
        return _batch(_Sum, (CHANNELS_LAST,), info.batch_size, dims, (g,))


def _merged(function: Any, dims: Dims, given: tuple[Any, ...]) -> tuple[Any, int]:
    """Members that share their weights are one larger batch."""
    many = given[0].movedim(dims[0], 0)
    out = _call(function, many.flatten(0, 1), *given[1:])
    return out.unflatten(0, many.shape[:2]), 0
