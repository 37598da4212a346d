"""Shortens a traced step: what does nothing goes, what is done twice is done once."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node

_ATEN = torch.ops.aten
_SHAPES = frozenset(
    {
        _ATEN.expand.default,
        _ATEN.view.default,
        _ATEN._unsafe_view.default,
        _ATEN.reshape.default,
    }
)
_ZEROS = frozenset({_ATEN.zeros.default, _ATEN.zeros_like.default, _ATEN.new_zeros.default})
_LARGE_BYTES = 128 << 10
_LOG_SOFTMAX = _ATEN._log_softmax.default
_LOG_SOFTMAX_BACKWARD = _ATEN._log_softmax_backward_data.default
#: Numbers in a softmax.
_FEW = 64
#: Cheap to compare and often repeated by gradients of losses.
_REPEATED = frozenset(
    {_ATEN.ne.Scalar, _ATEN.unsqueeze.default, _ATEN.transpose.int, _ATEN.scalar_tensor.default}
)


def is_zeros(node: Any) -> bool:
    """Whether a gradient is zero because nothing depends on its parameter."""
    while isinstance(node, Node) and node.target in _SHAPES:
        node = node.args[0]
    return isinstance(node, Node) and node.target in _ZEROS


def simplify(module: GraphModule) -> None:
    """Rewrite in place; what comes out stays the same, bit for bit."""
    graph = module.graph
    mutated = {node.args[0] for node in graph.nodes if _is_mutable(node)}
    is_pure = not mutated and not is_random(module)
    seen: dict[Any, Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        same = _same_as(node)
        if same is None and (is_pure or node.target in _REPEATED):
            key = (node.target, repr(node.args), repr(node.kwargs))
            if not mutated.intersection(node.all_input_nodes):
                same = seen.setdefault(key, node)
        if same is not None and same is not node:
            node.replace_all_uses_with(same)
            graph.erase_node(node)
    for number, node in enumerate(list(graph.nodes)):
        if node.target in (_ATEN.view.default, _ATEN._unsafe_view.default):
            # Kernels may lay out their results otherwise than was foretold.
            node.target = _ATEN.reshape.default
        if node.target is _ATEN.scalar_tensor.default:
            _make_constant(module, node, f"_constant{number}")
    graph.eliminate_dead_code()
    graph.lint()
    module.recompile()


def suit_to_host(module: GraphModule) -> None:
    """Rewrite in place what is slow on a CPU; results differ by rounding at most."""
    for node in list(module.graph.nodes):
        if node.target in (_LOG_SOFTMAX, _LOG_SOFTMAX_BACKWARD):
            _spell_out(module, node)
    _reuse_outputs(module)
    module.recompile()


def _spell_out(module: GraphModule, node: Node) -> None:
    """A softmax over a few numbers: PyTorch's kernel takes them one by one, these ops do not."""
    shape, dim = node.meta["val"].shape, node.args[-2]
    if shape[dim] > _FEW or node.meta["val"].dtype is not torch.float32:
        return
    call = module.graph.call_function
    with module.graph.inserting_before(node):
        if node.target is _LOG_SOFTMAX:
            most = call(_ATEN.amax.default, (node.args[0], [dim], True))
            left = call(_ATEN.sub.Tensor, (node.args[0], most))
            total = call(_ATEN.sum.dim_IntList, (call(_ATEN.exp.default, (left,)), [dim], True))
            new = call(_ATEN.sub.Tensor, (left, call(_ATEN.log.default, (total,))))
        else:
            slope, output = node.args[:2]
            total = call(_ATEN.sum.dim_IntList, (slope, [dim], True))
            part = call(_ATEN.mul.Tensor, (call(_ATEN.exp.default, (output,)), total))
            new = call(_ATEN.sub.Tensor, (slope, part))
    new.meta = dict(node.meta)
    node.replace_all_uses_with(new)
    module.graph.erase_node(node)


def _reuse_outputs(module: GraphModule) -> None:
    """Give large matrix products memory of their own, the same at each step.

    Memory that is allocated and freed at each step is often given back to the system and cleared
    again, which on a CPU costs as much as the product. What comes out is valid until the next step.
    """
    for number, node in enumerate(list(module.graph.nodes)):
        value = node.meta.get("val")
        if node.target is not _ATEN.bmm.default or value.nbytes < _LARGE_BYTES:
            continue
        name = f"_out{number}"
        module.register_buffer(name, torch.empty(value.shape, dtype=value.dtype))
        with module.graph.inserting_before(node):
            out = module.graph.get_attr(name)
        node.target = _ATEN.bmm.out
        node.kwargs = {"out": out}


def mutates(module: GraphModule) -> bool:
    """Whether a step changes a tensor in place."""
    return any(map(_is_mutable, module.graph.nodes))


def _is_mutable(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    return node.op == "call_function" and schema is not None and bool(schema.is_mutable)


def is_random(module: GraphModule) -> bool:
    """Whether a step draws random numbers."""
    return any(map(_is_random, module.graph.nodes))


def _is_random(node: Node) -> bool:
    tags = getattr(node.target, "tags", ())
    return torch.Tag.nondeterministic_seeded in tags or "keep" in str(node.target)


def _same_as(node: Node) -> Node | None:
    """A node with the same value in the same memory, if there is one."""
    source = node.args[0] if node.args else None
    if not isinstance(source, Node):
        return None
    if node.target in _SHAPES:
        old, new = source.meta["val"], node.meta["val"]
        if old.shape == new.shape and old.stride() == new.stride():
            return source
    elif node.target is _ATEN.transpose.int and source.target is _ATEN.transpose.int:
        if sorted(node.args[1:]) == sorted(source.args[1:]):  # type: ignore[type-var]
            return source.args[0]  # type: ignore[return-value]
    elif node.target is _ATEN.mul.Scalar and node.args[1] == 1:
        if source.meta["val"].dtype == node.meta["val"].dtype:
            return source
    elif node.target in (_ATEN.detach.default, _ATEN.alias.default):
        return source
    return None


def _make_constant(module: GraphModule, node: Node, name: str) -> None:
    """Compute a number once instead of at each step."""
    value = node.target(*node.args, **node.kwargs)  # type: ignore[operator]
    module.register_buffer(name, value)
    with module.graph.inserting_before(node):
        constant = module.graph.get_attr(name)
    constant.meta = dict(node.meta)
    node.replace_all_uses_with(constant)
    module.graph.erase_node(node)
