"""The user's model and loss, written down once as operations on whole stacks.

`torch.func` gives the loss and its gradients for all members at once; tracing that leaves a plain
list of operations, which runs without the cost of the transforms, can be captured as a CUDA graph
and compiled.
"""

from __future__ import annotations

import contextlib
import random
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.attention import SDPBackend, sdpa_kernel

from cerebro.task import ParamDict, Task
from cerebro.train.meter import Meter
from cerebro.train.stack.aside import aside
from cerebro.train.stack.ops import StackOps
from cerebro.train.stack.rewrite import is_zeros, mutates, simplify
from cerebro.train.told import told
from cerebro.types import Params

Autocast = Callable[[], contextlib.AbstractContextManager[Any]]


class CannotTrace(Exception):
    """The task does something that cannot be done for a whole stack at once."""


@dataclass(frozen=True, slots=True)
class Example:
    """One of everything that a step takes, with the stack's members on the first axis.

    Tensors of `batch` have that axis too, unless the members share their batches.
    """

    trained: Mapping[str, Tensor]
    others: Mapping[str, Tensor]
    batch: Mapping[str, Tensor]
    numbers: Mapping[str, Tensor]
    is_shared: bool
    #: Params that are not numbers of their own, the same for all members.
    params: Params

    def flat(self) -> list[Tensor]:
        """All tensors, in the order in which a traced step takes them."""
        parts = (self.trained, self.others, self.batch, self.numbers)
        return [tensor for part in parts for tensor in part.values()]


@dataclass(frozen=True, slots=True)
class Traced:
    """Takes the tensors of an Example in order; gives values of one number a member."""

    module: GraphModule
    #: Names of what comes out: "loss" and metrics; of training, sums over the rows of the batch,
    #: which come first, as one tensor, if there are any.
    values: tuple[str, ...]
    #: Parameters whose gradients follow, in order; others do not bear on the loss.
    grads: tuple[str, ...] = ()
    #: Params that were read, and those of them that the step takes as tensors, in order.
    reads: frozenset[str] = frozenset()
    numbers: tuple[str, ...] = ()
    #: Whether an evaluation changes what it is given.
    mutates: bool = False


def trace_training(
    task: Task,
    model: nn.Module,
    example: Example,
    autocast: Autocast,
    reads: set[str],
    *,
    is_metered: bool = True,
) -> Traced:
    """The loss of every member, what it tells the meter, if there is one, and its gradients.

    Args:
        reads: Gets the params that are read, whatever becomes of it.
    """
    names = list(example.trained)
    found: list[str] = []

    def loss(trained: list[Tensor], rest: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        given = dict(zip(names, trained, strict=True))
        meter = Meter()
        with told(task, "meter", meter if is_metered else None):
            value = _call(task.loss, model, example, given, rest, autocast, reads)
        if not isinstance(value, Tensor) or value.numel() != 1:
            raise CannotTrace("its loss is not a tensor with one number")
        # A plain number would be the same for all members, and for good.
        totals = {k: v for k, v in meter.where_they_are().items() if isinstance(v, Tensor)}
        sums = {str(name): total.to(value.device) for name, total in totals.items()}
        found[:] = list(sums)
        return value.reshape(()).float(), _numbers(sums.values())

    def member(trained: list[Tensor], rest: list[Tensor]) -> Any:
        return torch.func.grad_and_value(loss, has_aux=True)(trained, rest)

    def step(*flat: Tensor) -> list[Tensor]:
        trained, rest = list(flat[: len(names)]), list(flat[len(names) :])
        grads, (value, sums) = _over_members(member, example)(trained, rest)
        return [torch.stack([value, *sums]) if sums else value, *grads]

    model.train()
    with aside(task) as has_changed:
        module = _trace(step, example)
        if has_changed():
            # It may be what it tells the meter; else the next step would be another one.
            raise CannotTrace("loss() changes its task, or what that keeps")
    nodes = list(module.graph.nodes)
    value, *grads = nodes[-1].args[0]
    if found:
        value, found = _without_constants(value, found)
    # PyTorch's optimizers leave parameters alone that do not bear on the loss.
    kept = [
        (name, grad)
        for name, param, grad in zip(names, nodes, grads, strict=False)
        if not (is_zeros(grad) and all(map(is_zeros, param.users)))
    ]
    nodes[-1].args = ([value, *(grad for _, grad in kept)],)
    simplify(module)
    used = tuple(name for name, _ in kept)
    values = ("loss", *found)
    return Traced(module, values, used, frozenset(reads), tuple(example.numbers))


def trace_evaluation(
    task: Task, model: nn.Module, example: Example, autocast: Autocast, reads: set[str]
) -> Traced:
    """The loss and the metrics of every member; `reads` as in `trace_training`."""
    names = list(example.trained)
    found: list[str] = []

    def values(model: nn.Module, batch: dict[str, Any], params: Params) -> list[Tensor]:
        scores: dict[str, Any] = {"loss": task.loss(model, batch, params)}
        scores.update(task.metrics(model, batch, params))
        found[:] = [str(name) for name in scores]
        return _numbers(scores.values())

    def scored(trained: list[Tensor], rest: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        given = dict(zip(names, trained, strict=True))
        scores = _call(values, model, example, given, rest, autocast, reads)
        return scores[0], [score.detach() for score in scores]

    def member(trained: list[Tensor], rest: list[Tensor]) -> list[Tensor]:
        # Some operations are known for stacks only where they are differentiated: nobody uses the
        # gradients, so that they are left out again.
        _, (_, scores) = torch.func.grad_and_value(scored, has_aux=True)(trained, rest)
        return cast("list[Tensor]", scores)

    def step(*flat: Tensor) -> list[Tensor]:
        trained, rest = list(flat[: len(names)]), list(flat[len(names) :])
        return cast("list[Tensor]", _over_members(member, example)(trained, rest))

    model.eval()
    with aside(task) as has_changed:
        module = _trace(step, example)
        if has_changed():
            raise CannotTrace("loss() or metrics() changes its task, or what that keeps")
    simplify(module)
    numbers = tuple(example.numbers)
    return Traced(module, tuple(found), (), frozenset(reads), numbers, mutates(module))


def _without_constants(stacked: Node, names: list[str]) -> tuple[Node, list[str]]:
    """What comes out before the gradients, and the names of what is told beside the loss.

    What depends on nothing that a step takes was a number when the step was traced, of one member.
    """
    loss, *sums = cast("list[Node]", stacked.args[0])
    told = {name: node for name, node in zip(names, sums, strict=True) if _takes_input(node)}
    if not told:
        return loss, []
    stacked.args = ([loss, *told.values()],)
    return stacked, list(told)


def _takes_input(node: Node) -> bool:
    seen, ahead = {node}, [node]
    while ahead:
        if ahead[-1].op == "placeholder":
            return True
        new = [each for each in ahead.pop().all_input_nodes if each not in seen]
        seen.update(new)
        ahead += new
    return False


def _numbers(values: Iterable[Any]) -> list[Tensor]:
    numbers = [torch.as_tensor(value, dtype=torch.float32) for value in values]
    if any(number.numel() != 1 for number in numbers):
        raise CannotTrace("a metric is not one number")
    return [number.reshape(()) for number in numbers]


def _over_members(member: Callable[..., Any], example: Example) -> Callable[..., Any]:
    shared = None if example.is_shared else 0
    rest = [0] * len(example.others) + [shared] * len(example.batch) + [0] * len(example.numbers)

    def with_own_ops(trained: list[Tensor], rest: list[Tensor]) -> Any:
        with StackOps(lambda: trained[0].detach()):
            return member(trained, rest)

    return torch.func.vmap(with_own_ops, in_dims=(0, rest), randomness="different")


def _trace(step: Callable[..., Any], example: Example) -> GraphModule:
    before = random.getstate(), repr(np.random.get_state())
    try:
        with _decomposed(), warnings.catch_warnings():
            # Such an operation would be done for one member after the other.
            warnings.filterwarnings("error", ".*implemented the batching rule for")
            module = make_fx(step, tracing_mode="fake")(*example.flat())
        if before != (random.getstate(), repr(np.random.get_state())):
            raise CannotTrace("it draws from Python's or NumPy's generator at each step")
        return module
    except CannotTrace:
        raise
    except UserWarning as warning:
        name = re.search(r"batching rule for ([\w:]+)", str(warning))
        raise CannotTrace(f"{name[1] if name else warning} has no stacked version") from warning
    except Exception as error:
        text = str(error).strip().split("\n")[0]
        raise CannotTrace(f"{type(error).__name__}: {text:.200}") from error


@contextlib.contextmanager
def _decomposed() -> Iterator[None]:
    """Attention and recurrent layers as the operations they are made of."""
    libraries: tuple[Any, ...] = torch.backends.mkldnn, torch.backends.cudnn
    before = [library.enabled for library in libraries]
    try:
        for library in libraries:
            library.enabled = False
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        for library, was_enabled in zip(libraries, before, strict=True):
            library.enabled = was_enabled


class _Loss(nn.Module):
    """Gives `function` the model with the tensors that this module was called with."""

    def __init__(self, model: nn.Module, function: Callable[..., Any]) -> None:
        super().__init__()
        self.model = model
        self._function = function

    def forward(self, batch: dict[str, Any], params: Params) -> Any:
        return self._function(self.model, batch, params)


def _call(
    function: Callable[..., Any],
    model: nn.Module,
    example: Example,
    trained: Mapping[str, Tensor],
    rest: Sequence[Tensor],
    autocast: Autocast,
    reads: set[str],
) -> Any:
    taken = iter(rest)
    tensors = {f"model.{name}": tensor for name, tensor in trained.items()}
    tensors |= {f"model.{name}": next(taken) for name in example.others}
    batch = {name: next(taken) for name in example.batch}
    numbers = {name: next(taken) for name in example.numbers}
    params = ReadParams({**example.params, **numbers}, reads)
    given = dict(tensors)
    with autocast():
        value = torch.func.functional_call(_Loss(model, function), tensors, (batch, params))
    # What the model replaces comes back in the dict.
    for name, tensor in given.items():
        if tensors[name] is not tensor:
            raise CannotTrace(f"{name.removeprefix('model.')} is replaced, not changed in place")
    return value


class ReadParams(ParamDict):
    """Params that remember which of them were asked for."""

    def __init__(self, params: Mapping[str, Any], reads: set[str]) -> None:
        super().__init__(params)
        self._reads = reads

    def __getitem__(self, key: str) -> Any:
        self._reads.add(key)
        return super().__getitem__(key)

    def get(self, key: str, default: Any = None) -> Any:
        self._reads.add(key)
        return super().get(key, default)

    def __contains__(self, key: object) -> bool:
        self._reads.add(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._reads.update(super().keys())
        return super().__iter__()

    def keys(self) -> Any:
        self._reads.update(super().keys())
        return super().keys()

    def items(self) -> Any:
        self._reads.update(super().keys())
        return super().items()

    def values(self) -> Any:
        self._reads.update(super().keys())
        return super().values()
