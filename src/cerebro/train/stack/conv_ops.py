"""Convolutions of one model and of a stack, and their gradients, as operators of PyTorch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

Ints = Sequence[int]

_HOW = "int[] stride, int[] padding, int[] dilation, int groups, bool tf32"
_FORWARD = f"(Tensor x, Tensor w, Tensor? bias, {_HOW}) -> Tensor"
_INPUT_GRAD = f"(Tensor g, Tensor w, SymInt[] size, {_HOW}) -> Tensor"
_WEIGHT_GRAD = f"(Tensor g, Tensor x, SymInt[] size, {_HOW}) -> Tensor"
#: Orders of the dimensions after the first in memory.
CHANNELS_LAST = (1, 3, 4, 2)
FILTERS_LAST = (2, 3, 4, 1)
INVERSE: dict[tuple[int, ...], tuple[int, ...]] = {
    CHANNELS_LAST: (0, 1, 4, 2, 3),
    FILTERS_LAST: (0, 4, 1, 2, 3),
}


def _empty(like: Tensor, *shape: int) -> Tensor:
    """Uninitialized images [..., channels, height, width] that lie channels-last."""
    *before, channels, height, width = shape
    return like.new_empty((*before, height, width, channels)).movedim(-1, -3)


def _laid(found: Tensor) -> Tensor:
    """The same images, channels-last."""
    out = _empty(found, *found.shape)
    return found if found.stride() == out.stride() else out.copy_(found)


def _out_size(size: Ints, kernel: Ints, how: Sequence[Any]) -> list[int]:
    numbers = zip(size, kernel, *how[:3], strict=True)
    return [(i + 2 * p - d * (k - 1) - 1) // s + 1 for i, k, s, p, d in numbers]


# What PyTorch computes. `how` is stride, padding, dilation, groups and tf32.


def forward(x: Tensor, w: Tensor, bias: Tensor | None, how: Sequence[Any]) -> Tensor:
    *where, groups, _ = how
    out: Tensor = torch.ops.aten.convolution.default(x, w, bias, *where, False, [0, 0], groups)
    return out


def backward(
    g: Tensor, x: Tensor | None, w: Tensor | None, size: Ints, how: Sequence[Any]
) -> Tensor:
    """The gradient by what is not given, whose height and width is `size`."""
    *where, groups, _ = how
    which = (x is None, w is None, False)
    if x is None and w is not None:
        x = g.new_empty(1).expand(g.shape[0], w.shape[1] * groups, *size)
    elif w is None and x is not None:
        w = g.new_empty(1).expand(g.shape[1], x.shape[1] // groups, *size)
    given = (g, x, w, None, *where, False, [0, 0], groups, which)
    found: list[Tensor] = torch.ops.aten.convolution_backward.default(*given)
    return found[0] if which[0] else found[1]


# The same of a stack: every tensor has a dimension more, in front.


@torch.library.custom_op("cerebro::stacked_conv2d", mutates_args=(), schema=_FORWARD)
def stacked_conv2d(x: Tensor, w: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    if (kernels := _kernels(how, x, w)) is not None:
        size = _out_size(x.shape[3:], w.shape[3:], how)
        images, filters = packed(x, CHANNELS_LAST), packed(w, CHANNELS_LAST)
        shape = kernels.Geometry.of(w.shape[3:], how)
        bias = None if bias is None else bias.contiguous()
        out: Tensor = kernels.conv(images, filters, bias, size, shape, flip=False, tf32=how[-1])
        return out.movedim(-1, -3)
    if x.is_cuda:
        flat = None if bias is None else bias.flatten()
        return _laid(_apart(forward(_joined(x), w.flatten(0, 1), flat, _times(how, x)), x))
    result = _fake_conv2d(x, w, bias, *how)
    for member, into in enumerate(result):
        into.copy_(forward(x[member], w[member], None if bias is None else bias[member], how))
    return result


@torch.library.custom_op("cerebro::stacked_conv2d_input_grad", mutates_args=(), schema=_INPUT_GRAD)
def stacked_input_grad(g: Tensor, w: Tensor, size: Ints, *how: Any) -> Tensor:
    if (kernels := _kernels(how, g, w)) is not None:
        images, filters = packed(g, CHANNELS_LAST), packed(w, FILTERS_LAST)
        shape = kernels.Geometry.of(w.shape[3:], how).transposed()
        out: Tensor = kernels.conv(images, filters, None, size, shape, flip=True, tf32=how[-1])
        return out.movedim(-1, -3)
    if g.is_cuda:
        found = backward(_joined(g), None, w.flatten(0, 1), size, _times(how, g))
        return _laid(_apart(found, g))
    result = _fake_input_grad(g, w, size, *how)
    for member, into in enumerate(result):
        into.copy_(backward(g[member], None, w[member], size, how))
    return result


@torch.library.custom_op(
    "cerebro::stacked_conv2d_weight_grad", mutates_args=(), schema=_WEIGHT_GRAD
)
def stacked_weight_grad(g: Tensor, x: Tensor, size: Ints, *how: Any) -> Tensor:
    if (kernels := _kernels(how, g, x)) is not None:
        outer, images = packed(g, CHANNELS_LAST), packed(x, CHANNELS_LAST)
        shape = kernels.Geometry.of(size, how)
        out: Tensor = kernels.weight_grad(outer, images, shape, tf32=how[-1])
        return out
    if g.is_cuda:
        found = backward(_joined(g), _joined(x), None, size, _times(how, g))
        return found.reshape(g.shape[0], g.shape[2], *found.shape[1:]).contiguous()
    result = _fake_weight_grad(g, x, size, *how)
    for member, into in enumerate(result):
        into.copy_(backward(g[member], x[member], None, size, how))
    return result


@torch.library.custom_op("cerebro::stacked_sum", mutates_args=(), schema="(Tensor g) -> Tensor")
def stacked_sum(g: Tensor) -> Tensor:
    if (kernels := _kernels((1, False), g)) is None:
        return g.sum((1, 3, 4))
    out: Tensor = kernels.channel_sum(packed(g, CHANNELS_LAST))
    return out


def _kernels(how: Sequence[Any], *tensors: Tensor) -> Any:
    """The module with kernels for these, if there are any."""
    # Of a single model the library's own convolutions fill the card better.
    covered = tensors[0].is_cuda and len(tensors[0]) > 1 and how[-2] == 1
    if (
        not covered
        or torch.version.hip is not None
        or torch.cuda.get_device_capability(tensors[0].device) < (8, 0)
    ):
        return None
    try:
        from cerebro.train.stack import conv_triton as kernels
    except ImportError:
        return None
    known = all(t.dtype in kernels.DTYPES for t in tensors)
    return kernels if known and all(t[0].numel() < kernels.MAX_ELEMENTS for t in tensors) else None


def packed(value: Tensor, order: tuple[int, ...]) -> Tensor:
    """Each member's dimensions in this order, dense; a member that all share is copied once."""
    value = value.permute(0, *order)
    expected = 1
    for size, stride in zip(value.shape[:0:-1], value.stride()[:0:-1], strict=True):
        if size != 1 and stride != expected:
            shared = value.stride(0) == 0
            return value[:1].contiguous().expand(value.shape) if shared else value.contiguous()
        expected *= size
    return value


def _joined(value: Tensor) -> Tensor:
    """[K, B, C, H, W] to [B, K * C, H, W], as grouped convolution has it."""
    return value.transpose(0, 1).flatten(1, 2)


def _apart(value: Tensor, like: Tensor) -> Tensor:
    """[B, K * C, H, W] to [K, B, C, H, W]."""
    return value.view(value.shape[0], like.shape[0], -1, *value.shape[2:]).transpose(0, 1)


def _times(how: Sequence[Any], stack: Tensor) -> tuple[Any, ...]:
    return (*how[:3], how[3] * stack.shape[0], how[4])


def _fake_conv2d(x: Tensor, w: Tensor, bias: Tensor | None, *how: Any) -> Tensor:
    return _empty(x, *x.shape[:2], w.shape[1], *_out_size(x.shape[3:], w.shape[3:], how))


def _fake_input_grad(g: Tensor, w: Tensor, size: Ints, *how: Any) -> Tensor:
    return _empty(g, *g.shape[:2], w.shape[2] * how[-2], *size)


def _fake_weight_grad(g: Tensor, x: Tensor, size: Ints, *how: Any) -> Tensor:
    return g.new_empty((g.shape[0], g.shape[2], x.shape[2] // how[-2], *size))


stacked_sum.register_fake(lambda g: g.new_empty((g.shape[0], g.shape[2])))
stacked_conv2d.register_fake(_fake_conv2d)
stacked_input_grad.register_fake(_fake_input_grad)
stacked_weight_grad.register_fake(_fake_weight_grad)
