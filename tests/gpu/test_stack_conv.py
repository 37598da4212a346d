"""Stacked convolution's kernels against PyTorch's convolution, member by member."""

from __future__ import annotations

import pytest
import torch
from torch.func import grad_and_value, vmap
from torch.nn.functional import conv2d as reference

from cerebro.train.stack.conv import conv2d

pytestmark = pytest.mark.gpu

#: Name: dtype, whether TF32 is allowed, largest relative error.
PRECISIONS = {
    "exact": (torch.float32, False, 1e-5),
    "tf32": (torch.float32, True, 2e-3),
    "bf16": (torch.bfloat16, False, 1e-2),
    "fp16": (torch.float16, False, 2e-3),
}
#: Members, batch, channels, height, width, filters, kernel, stride, padding, dilation.
SHAPES = [
    (4, 16, 3, 32, 32, 32, 3, 1, 1, 1),
    (4, 16, 32, 16, 16, 64, 3, 1, 1, 1),
    (3, 16, 64, 8, 8, 128, 3, 1, 1, 1),
    (2, 5, 16, 13, 9, 20, 3, 2, 1, 1),
    (2, 3, 6, 14, 14, 16, 5, 1, 0, 1),
    (2, 4, 3, 33, 31, 64, 7, 2, 3, 1),
    (2, 3, 24, 7, 7, 40, 1, 2, 0, 1),
    (2, 3, 48, 10, 11, 10, 3, 1, 2, 2),
    (1, 2, 256, 7, 7, 320, 3, 1, 1, 1),
    (2, 3, 1, 8, 8, 1, 3, 3, 1, 2),
    (1, 9, 16, 24, 23, 24, 3, 1, 1, 1),
    (2, 8, 128, 8, 8, 64, 3, 1, 1, 1),
    (2, 8, 32, 12, 12, 32, 3, 1, 1, 1),
    # Sizes that are powers of two, where Triton once compiled wrongly.
    (2, 8, 32, 16, 16, 32, 3, 1, 1, 1),
    (2, 8, 64, 16, 16, 32, 3, 1, 1, 1),
    (2, 9, 128, 16, 16, 128, 3, 2, 1, 1),
]


@pytest.fixture(params=PRECISIONS)
def precision(request, monkeypatch):
    dtype, tf32, bound = PRECISIONS[request.param]
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", tf32)
    return dtype, bound


def random(shape, dtype):
    members, batch, channels, height, width, filters, kernel = shape[:7]
    x = torch.randn(members, batch, channels, height, width, device="cuda")
    w = torch.randn(members, filters, channels, kernel, kernel, device="cuda")
    b = torch.randn(members, filters, device="cuda")
    return tuple(t.to(dtype) for t in (x, w, b))


def all_of(conv, x, w, b, weights, settings):
    """The output, and gradients of a weighted sum of it."""

    def loss(x, w, b):
        out = conv(x, w, b, *settings)
        return (out * weights).sum(), out

    grads, (_, out) = grad_and_value(loss, argnums=(0, 1, 2), has_aux=True)(x, w, b)
    return (out, *grads)


def error(ours, right):
    assert ours.shape == right.shape
    return ((ours.double() - right).norm() / right.norm()).item()


def run(shape, given, weights):
    settings = shape[7:10]
    return vmap(lambda x, w, b, v: all_of(conv2d, x, w, b, v, settings))(*given, weights)


def expected(shape, given, weights):
    every = [t.double().cpu() for t in (*given, weights)]
    found = [all_of(reference, *each, shape[7:10]) for each in zip(*every, strict=True)]
    return [torch.stack(part).cuda() for part in zip(*found, strict=True)]


def weights_for(shape, given, dtype):
    out = reference(given[0][0], given[1][0], None, *shape[7:10])
    return torch.randn(shape[0], *out.shape, device="cuda").to(dtype)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_output_and_gradients(shape, precision):
    dtype, bound = precision
    given = random(shape, dtype)
    weights = weights_for(shape, given, dtype)
    ours = run(shape, given, weights)
    for mine, right in zip(ours, expected(shape, given, weights), strict=True):
        assert mine.dtype == dtype
        assert error(mine, right) < bound
    again = run(shape, given, weights)
    assert all(torch.equal(mine, same) for mine, same in zip(ours, again, strict=True))


def test_a_member_gets_the_same_bits_in_any_company(precision):
    shape = SHAPES[1]
    given = random(shape, precision[0])
    weights = weights_for(shape, given, precision[0])
    together = run(shape, given, weights)
    fewer = run(shape, [t[1:3] for t in given], weights[1:3])
    assert all(torch.equal(a[1:3], b) for a, b in zip(together, fewer, strict=True))


def test_a_batch_that_all_share(precision):
    dtype, bound = precision
    x, w, b = random(SHAPES[0], dtype)
    ours = vmap(lambda w, b: conv2d(x[0], w, b, padding=1))(w, b)
    for member, right in enumerate(ours):
        theirs = reference(x[0].double(), w[member].double(), b[member].double(), padding=1)
        assert error(right, theirs) < bound


@pytest.mark.parametrize(("dtype", "groups"), [(torch.float64, 1), (torch.float32, 2)])
def test_what_the_kernels_do_not_cover(dtype, groups, monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    x, w, b = random((3, 4, 8, 9, 9, 6, 3), dtype)
    w = w[:, :, : 8 // groups]
    settings = (1, 1, 1, groups)
    weights = torch.randn(3, 4, 6, 9, 9, device="cuda", dtype=dtype)
    ours = vmap(lambda x, w, b, v: all_of(conv2d, x, w, b, v, settings))(x, w, b, weights)
    shape = (3, 4, 8, 9, 9, 6, 3, *settings)
    every = [t.double() for t in (x, w, b, weights)]
    found = [all_of(reference, *each, shape[7:]) for each in zip(*every, strict=True)]
    for mine, parts in zip(ours, zip(*found, strict=True), strict=True):
        assert error(mine, torch.stack(parts)) < 1e-5


def test_outputs_lie_as_promised_to_a_compiler():
    ops, how = torch.ops.cerebro, ([2, 2], [1, 1], [1, 1], 1, False)
    x, w, b = random(SHAPES[3], torch.float32)
    g = ops.stacked_conv2d(x, w, b, *how)
    for name, given in {
        "stacked_conv2d": (x, w, b, *how),
        "stacked_conv2d_input_grad": (g, w, (13, 9), *how),
        "stacked_conv2d_weight_grad": (g, x, (3, 3), *how),
    }.items():
        torch.library.opcheck(getattr(ops, name).default, given)
