"""Stacked convolution against PyTorch's, member by member; the kernels themselves in tests/gpu."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
import torch._inductor.config
from torch import nn
from torch.func import functional_call, grad, grad_and_value, stack_module_state, vmap
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.functional import conv2d as reference

from cerebro.train.stack.conv import conv2d

MEMBERS = 3
SETTINGS = {
    "plain": {},
    "padded": {"padding": 1},
    "strided": {"stride": 2, "padding": (1, 0)},
    "same": {"padding": "same"},
    "valid": {"padding": "valid"},
    "dilated": {"dilation": (2, 1), "padding": 2},
    "grouped": {"groups": 2},
}


def tensors(kernel=3, dtype=torch.float64, groups=1, channels=4, filters=6):
    x = torch.randn(MEMBERS, 2, channels, 9, 8, dtype=dtype)
    w = torch.randn(MEMBERS, filters, channels // groups, kernel, kernel, dtype=dtype)
    return x, w, torch.randn(MEMBERS, filters, dtype=dtype)


def loss(conv, x, w, b, settings):
    out = conv(x, w, b, **settings)
    return (out.sin() * out).sum()


def of_each(x, w, b, settings):
    """Loss and gradients, one member after the other."""
    found = []
    for member in range(MEMBERS):
        given = [t[member].clone().requires_grad_() for t in (x, w, b)]
        value = loss(reference, *given, settings)
        found.append((value.detach(), *torch.autograd.grad(value, given)))
    return [torch.stack(parts) for parts in zip(*found, strict=True)]


def stacked(x, w, b, settings):
    one = grad_and_value(lambda *given: loss(conv2d, *given, settings), argnums=(0, 1, 2))
    return vmap(one)(x, w, b)


def assert_same(ours, theirs, **tolerance):
    grads, value = ours
    for mine, right in zip((value, *grads), theirs, strict=True):
        torch.testing.assert_close(mine, right, **tolerance)


@pytest.mark.filterwarnings("ignore:Using padding=.same. with even kernel")
@pytest.mark.parametrize("kernel", [1, 2, 3, 5])
@pytest.mark.parametrize("name", SETTINGS)
def test_values_and_gradients_are_those_of_each_member(name, kernel):
    settings = SETTINGS[name]
    given = tensors(kernel, groups=settings.get("groups", 1))
    assert_same(stacked(*given, settings), of_each(*given, settings))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_other_precisions(dtype):
    given = tensors(dtype=dtype)
    ours = vmap(lambda *member: conv2d(*member, padding=1))(*given)
    theirs = torch.stack([reference(*member, padding=1) for member in zip(*given, strict=True)])
    assert ours.dtype == dtype
    torch.testing.assert_close(ours, theirs)


def test_a_batch_that_all_share():
    x, w, b = tensors()
    one = grad_and_value(lambda w, b: loss(conv2d, x[0], w, b, {"padding": 1}), argnums=(0, 1))
    value, by_w, by_b = (of_each(x[:1].expand_as(x), w, b, {"padding": 1})[i] for i in (0, 2, 3))
    assert_same(vmap(one)(w, b), (value, by_w, by_b))


def test_weights_that_all_share():
    x, w, _ = tensors()
    ours = vmap(grad(lambda x: conv2d(x, w[0], None, padding=1).square().sum()))(x)
    theirs = [
        grad(lambda x: reference(x, w[0], None, padding=1).square().sum())(each) for each in x
    ]
    torch.testing.assert_close(ours, torch.stack(theirs))


def test_no_bias_one_image_and_no_vmap():
    x, w, _ = tensors()
    ours = vmap(lambda x, w: conv2d(x, w, None, 2))(x[:, 0], w)
    torch.testing.assert_close(ours[1], reference(x[1, 0], w[1], None, 2))
    torch.testing.assert_close(conv2d(x[0], w[0]), reference(x[0], w[0]))


def test_gradients_of_gradients():
    x, w, b = (t[:2] for t in tensors(channels=2, filters=2))
    x = x[..., :5, :4]
    given = [t.clone().requires_grad_() for t in (x, w, b)]
    member = [t[0].detach().clone().requires_grad_() for t in (x, w, b)]
    assert torch.autograd.gradgradcheck(lambda *each: conv2d(*each, stride=2), member)
    assert torch.autograd.gradgradcheck(vmap(lambda *each: conv2d(*each, stride=2)), given)


def test_a_stack_of_stacks():
    x, w, b = (t.unflatten(0, (3, 1)).expand(3, 2, *t.shape[1:]) for t in tensors())
    ours = vmap(vmap(lambda *each: conv2d(*each, padding=1)))(x, w, b)
    torch.testing.assert_close(ours[2, 1], reference(x[2, 1], w[2, 1], b[2, 1], padding=1))


def test_activations_lie_channels_last():
    x, w, b = tensors()
    out = vmap(lambda *each: conv2d(*each, padding=1))(x, w, b)
    assert out.permute(0, 1, 3, 4, 2).is_contiguous()


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (1, 1, 1, 1), (2, 4, 1, 1)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_operators_keep_their_promises(shape, layout):
    """Schema, fake tensors with strides, autograd registration and tracing."""
    ops = torch.ops.cerebro
    x = torch.randn(shape, dtype=torch.float64).to(memory_format=layout)
    w = torch.randn(6, shape[1], 3, 3, dtype=torch.float64)
    b = torch.randn(6, dtype=torch.float64)
    how = ([1, 1], [1, 1], [1, 1], 1, False)
    g = conv2d(x, w, b, padding=1).detach()
    given = {
        "conv2d": (x, w, b, *how),
        "conv2d_input_grad": (g, w, shape[2:], *how),
        "conv2d_weight_grad": (g, x, (3, 3), *how),
    }
    for name, arguments in given.items():
        stack = [torch.stack([t, t]) if isinstance(t, torch.Tensor) else t for t in arguments]
        torch.library.opcheck(getattr(ops, f"stacked_{name}").default, tuple(stack))


def network():
    return nn.Sequential(
        nn.Conv2d(3, 4, 3, padding=1), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(4, 5, 3, stride=2), nn.Flatten(), nn.Linear(5, 2),
    )  # fmt: skip


@pytest.fixture
def step(monkeypatch):
    """A function of stacked parameters and batches that gives all gradients, and its arguments."""
    models = [network().double() for _ in range(MEMBERS)]
    params, _ = stack_module_state(models)
    x = torch.randn(MEMBERS, 2, 3, 8, 8, dtype=torch.float64)
    params = {name: value.detach() for name, value in params.items()}

    def one(params, x):
        return functional_call(models[0], params, (x,)).square().sum()

    expected = vmap(grad(one))(params, x)
    monkeypatch.setattr(torch.nn.functional, "conv2d", conv2d)
    return vmap(grad(one)), (params, x), expected


def test_a_model_whose_conv2d_is_replaced(step):
    function, given, expected = step
    torch.testing.assert_close(function(*given), expected)


def test_a_traced_step_holds_one_stacked_operator_per_need(step):
    function, given, expected = step
    traced = make_fx(function, tracing_mode="fake")(*given)
    names = [str(n.target) for n in traced.graph.nodes if "cerebro" in str(n.target)]
    assert sorted(names) == sorted(
        ["cerebro.stacked_conv2d.default", "cerebro.stacked_conv2d_weight_grad.default"] * 2
        + ["cerebro.stacked_conv2d_input_grad.default"]  # none by the first layer's images
    )
    torch.testing.assert_close(traced(*given), expected)


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.slow)])
@pytest.mark.filterwarnings("ignore")
def test_a_compiled_step(step, backend, monkeypatch, tmp_path):
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR", "")  # it leaves one behind
    function, given, expected = step
    traced = make_fx(function)(*given)
    with torch._inductor.config.patch(compile_threads=1):
        compiled = torch.compile(traced, backend=backend, fullgraph=True)
        torch.testing.assert_close(compiled(*given), expected)


@pytest.mark.filterwarnings("ignore")
def test_the_compiler_sees_through_it_without_a_trace():
    x, w, b = tensors()
    compiled = torch.compile(vmap(lambda *each: conv2d(*each, padding=1)), backend="aot_eager")
    torch.testing.assert_close(compiled(x, w, b), vmap(lambda *e: conv2d(*e, padding=1))(x, w, b))


def test_autocast_casts_as_pytorch_does():
    x, w, b = tensors(dtype=torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        ours, theirs = vmap(conv2d)(x, w, b), reference(x[0], w[0], b[0])
    assert ours.dtype == theirs.dtype == torch.bfloat16
    torch.testing.assert_close(ours[0], theirs)


def test_what_does_not_fit_is_refused():
    x, w, b = (t[0] for t in tensors())
    with pytest.raises(RuntimeError, match="must fit"):
        conv2d(x, w[:, :2], b)
    with pytest.raises(RuntimeError, match="float"):
        conv2d(x.float(), w, b)
    with pytest.raises(RuntimeError, match="same"):
        conv2d(x, w, b, stride=2, padding="same")


def test_importing_it_does_not_import_triton():
    code = "import sys, cerebro.train.stack.conv; assert 'triton' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
