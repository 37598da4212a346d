"""Watches a model compute one loss, and writes down its graph.

Nothing is compiled or traced into another form: the task runs as it always does, so whatever can be
trained has a graph. It shows the operations as the user's code calls them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle

from cerebro.task import Task
from cerebro.track.graph import GraphNode
from cerebro.types import Params

logger = logging.getLogger("cerebro.train")

#: Larger graphs are of no use to a viewer.
_MOST_NODES = 20_000


def model_graph(
    task: Task, model: nn.Module, batch: Mapping[str, Any], params: Params
) -> tuple[GraphNode, ...]:
    """The graph of a task's loss for one batch; empty, with a word about it, where it fails."""
    watch = _Watch(model, batch)
    try:
        with torch.no_grad(), watch:
            loss = task.loss(model, dict(batch), params)
    except Exception as error:
        logger.info("the model has no graph: its loss failed for a few rows: %s", error)
        return ()
    finally:
        watch.end()
    return watch.finish(loss)


class _Watch(TorchFunctionMode):
    """Sees every function of torch that is called, and the module that calls it."""

    def __init__(self, model: nn.Module, batch: Mapping[str, Any]) -> None:
        super().__init__()
        self._nodes: dict[str, GraphNode] = {}
        #: By id of a tensor: the node that gives it. Tensors are held, so that no id comes twice.
        self._makers: dict[int, str] = {}
        self._held: list[Tensor] = []
        self._scopes: list[str] = []
        scopes = _scopes_of(model)
        self._known = dict(_named(model, batch, scopes))
        self._hooks = list(self._hook(model, scopes))

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = func(*args, **(kwargs or {}))
        made = list(_tensors(given))
        name = getattr(func, "__name__", "")
        # What only looks at a tensor (its shape, its device) makes none.
        if made and name not in ("__get__", "__set__") and len(self._nodes) < _MOST_NODES:
            sources = [*_tensors(args), *_tensors(list((kwargs or {}).values()))]
            self._add(name.strip("_") or "op", sources, made)
        return given

    def end(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def finish(self, loss: object) -> tuple[GraphNode, ...]:
        maker = self._makers.get(id(loss))
        if maker is not None:
            self._nodes["loss"] = GraphNode("loss", "loss", (maker,), ())
        return tuple(self._nodes.values())

    def _add(self, op: str, sources: Sequence[Tensor], made: Sequence[Tensor]) -> None:
        inputs = tuple(dict.fromkeys(filter(None, map(self._maker, sources))))
        name = self._free_name("/".join([*self._scopes[-1:], op]))
        shape = tuple(made[0].shape) if len(made) == 1 else None
        self._nodes[name] = GraphNode(name, op, inputs, shape)
        for tensor in made:
            self._makers[id(tensor)] = name
            self._held.append(tensor)

    def _maker(self, tensor: Tensor) -> str | None:
        found = self._makers.get(id(tensor))
        if found is None and id(tensor) in self._known:
            node = self._known[id(tensor)]
            found = self._makers[id(tensor)] = node.name
            self._nodes[node.name] = node
        return found

    def _free_name(self, name: str) -> str:
        found, number = name, 0
        while found in self._nodes:
            number += 1
            found = f"{name}_{number}"
        return found

    def _hook(self, model: nn.Module, scopes: Mapping[str, str]) -> Iterator[RemovableHandle]:
        for path, module in model.named_modules():

            def enter(*_: object, scope: str = scopes[path]) -> None:
                self._scopes.append(scope)

            def leave(*_: object) -> None:
                self._scopes.pop()

            yield module.register_forward_pre_hook(enter)
            yield module.register_forward_hook(leave, always_call=True)


def _scopes_of(model: nn.Module) -> dict[str, str]:
    """By path of a module, what a graph calls it: "0.fc" is "Net/Block[0]/Linear[fc]"."""
    scopes: dict[str, str] = {}
    for path, module in model.named_modules():
        outer, _, own = path.rpartition(".")
        kind = type(module).__name__
        scopes[path] = f"{scopes[outer]}/{kind}[{own}]" if path else kind
    return scopes


def _named(
    model: nn.Module, batch: Mapping[str, Any], scopes: Mapping[str, str]
) -> Iterator[tuple[int, GraphNode]]:
    """What there is before the loss is computed; it is shown once it is used."""
    for kind, named in (
        ("parameter", model.named_parameters(remove_duplicate=True)),
        ("buffer", model.named_buffers(remove_duplicate=True)),
    ):
        for path, tensor in named:
            module, _, own = path.rpartition(".")
            name = f"{scopes[module]}/{own}"
            yield id(tensor), GraphNode(name, kind, (), tuple(tensor.shape))
    for column, value in batch.items():
        if isinstance(value, Tensor):
            yield id(value), GraphNode(f"input/{column}", "input", (), tuple(value.shape))


def _tensors(value: object) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)
