"""What a step of a stack costs: counted from its operations, with rates that were measured.

A pure function of the structure, the batch size and the kind of device, so that every run of an
experiment chooses the same stacks. `benchmarks/stacks.py` measures how far it is off.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch.fx import GraphModule, Node

#: Numbers of members that are considered.
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)

_ATEN = torch.ops.aten


@dataclass(frozen=True, slots=True)
class Work:
    """What one member asks of a step, and how many operations the step has."""

    operations: int
    flops: float
    #: Read and written by matrix products, convolutions and the update; by all the rest.
    heavy_bytes: float
    light_bytes: float
    has_convolutions: bool
    state_bytes: int
    #: Allocated by a step beside the state.
    step_bytes: int

    @property
    def moved_bytes(self) -> float:
        return self.heavy_bytes + self.light_bytes


@dataclass(frozen=True, slots=True)
class Rates:
    """How fast a kind of device is."""

    #: Seconds that a step takes whatever it computes: of the plain loop, and of a stack.
    plain_s: float
    plain_operation_s: float
    stack_s: float
    stack_operation_s: float
    flops: float
    bytes: float
    #: The same for stacks whose members together exceed `cache_bytes`.
    far_bytes: float
    cache_bytes: float
    #: How much longer a stack takes for networks with convolutions: on a CPU PyTorch's own kernels
    #: lay out pictures as suits them, and vmap moves them about.
    convolution_factor: float = 1.0
    #: To compile a step: seconds for any, and for each operation; what is left of light bytes.
    compile_s: float = math.inf
    compile_operation_s: float = 0.0
    compiled_bytes: float = 1.0


#: AMD EPYC, one thread, float32.
_CPU = Rates(50e-6, 7e-6, 50e-6, 7e-6, 80e9, 30e9, 15e9, 12e6, convolution_factor=1.4)
#: H200, by precision of matrix products.
_CUDA = Rates(
    *(200e-6, 25e-6, 20e-6, 2e-6, 40e12, 3.2e12, 3.2e12, math.inf),
    compile_s=12.0,
    compile_operation_s=0.1,
    compiled_bytes=0.25,
)
_CUDA_FLOPS = {"tf32": 150e12, "bf16": 300e12}


def rates_of(device: str, amp: object) -> Rates:
    """The rates of a kind of device."""
    if device == "cpu":
        return _CPU
    return replace(_CUDA, flops=_CUDA_FLOPS.get(str(amp), _CUDA.flops))


def predict(work: Work, rates: Rates) -> dict[int, float]:
    """Members -> seconds of a step for all of them; 0: of the plain loop for one trial."""
    one = work.flops / rates.flops + work.moved_bytes / rates.bytes
    found = {0: rates.plain_s + rates.plain_operation_s * work.operations + one}
    for members in SIZES:
        reach = members * (work.state_bytes + work.step_bytes)
        speed = rates.bytes if reach <= rates.cache_bytes else rates.far_bytes
        each = work.flops / rates.flops + work.moved_bytes / speed
        if work.has_convolutions:
            each *= rates.convolution_factor
        found[members] = rates.stack_s + rates.stack_operation_s * work.operations + members * each
    return found


def predict_compiled(work: Work, rates: Rates) -> tuple[float, dict[int, float]]:
    """Seconds to compile a step, and what it takes once it is; nothing where that is not done."""
    if math.isinf(rates.compile_s):
        return 0.0, {}
    seconds = rates.compile_s + rates.compile_operation_s * work.operations
    moved = work.heavy_bytes + rates.compiled_bytes * work.light_bytes
    each = work.flops / rates.flops + moved / rates.bytes
    fixed = rates.stack_s + rates.stack_operation_s * work.operations / 2
    return seconds, {members: fixed + members * each for members in SIZES}


def count(module: GraphModule, members: int, state_bytes: int, trained_bytes: int) -> Work:
    """The work of a traced training step, for one of its members.

    Args:
        trained_bytes: Of the parameters that are updated, of one member.
    """
    operations, flops, written, heavy = 0, 0.0, 0.0, 0.0
    has_convolutions = False
    for node in module.graph.nodes:
        if node.op != "call_function" or _is_view(node):
            continue
        operations += 1
        own, size = _flops(node), _bytes(node)
        flops += own
        written += size
        if own:
            heavy += size
        has_convolutions |= "conv" in str(node.target)
    # Every result is written and read again; the update reads and writes state, and reads grads.
    update = 2 * state_bytes + trained_bytes
    return Work(
        operations=operations,
        flops=flops / members,
        heavy_bytes=2 * heavy / members + update,
        light_bytes=2 * (written - heavy) / members,
        has_convolutions=has_convolutions,
        state_bytes=state_bytes,
        step_bytes=int(written / members),
    )


def _bytes(node: Node) -> int:
    value = node.meta.get("val")
    tensors = value if isinstance(value, tuple | list) else [value]
    return sum(t.numel() * t.element_size() for t in tensors if isinstance(t, torch.Tensor))


def _is_view(node: Node) -> bool:
    schema = getattr(node.target, "_schema", None)
    if schema is None or not schema.returns:
        return False
    info = schema.returns[0].alias_info
    return info is not None and not info.is_write


def _flops(node: Node) -> float:
    """Of matrix products and convolutions; the rest is bound by memory."""
    size = float(math.prod(_shape(node)))
    if node.target in (_ATEN.bmm.default, _ATEN.bmm.out, _ATEN.mm.default):
        inner = _shape(node.args[0])[-1]
        return 2.0 * size * inner
    if node.target in (_ATEN.addmm.default, _ATEN.baddbmm.default):
        inner = _shape(node.args[1])[-1]
        return 2.0 * size * inner
    if node.target is _ATEN.convolution.default:
        return 2.0 * size * math.prod(_shape(node.args[1])[1:])
    if node.target is _ATEN.convolution_backward.default:
        return 4.0 * math.prod(_shape(node.args[0])) * math.prod(_shape(node.args[2])[1:])
    return _stacked_flops(node, str(node.target))


def _stacked_flops(node: Node, name: str) -> float:
    if "stacked_conv2d" not in name:
        return 0.0
    shapes = [_shape(arg) for arg in node.args if isinstance(arg, Node)]
    largest = max(math.prod(shape) for shape in (*shapes, _shape(node)))
    smallest = min(shapes, key=math.prod)
    return 2.0 * largest * math.prod(smallest[2:])


def _shape(node: object) -> tuple[int, ...]:
    value = node.meta.get("val") if isinstance(node, Node) else None
    return tuple(value.shape) if isinstance(value, torch.Tensor) else ()
