"""Which trials are alike enough to be trained as one, and why others are not."""

from __future__ import annotations

import weakref
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cerebro.task import Task
from cerebro.train.identity import describe_value
from cerebro.train.stack.optim import obstacle_of, rule_of
from cerebro.types import Params

#: What PyTorch keeps in a module for itself.
_OWN = frozenset(vars(nn.Module())) - {"training"}


_HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")


def structure_of(model: nn.Module) -> Hashable:
    """Equal for two models that differ in nothing but the values of their tensors."""
    modules = tuple(
        (path, type(module), _attributes(module)) for path, module in model.named_modules()
    )
    tensors = tuple(
        (name, tuple(tensor.shape), tensor.dtype, tensor.requires_grad)
        for name, tensor in (
            *model.named_parameters(remove_duplicate=False),
            *model.named_buffers(remove_duplicate=False),
        )
    )
    shared: dict[int, str] = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        shared.setdefault(id(tensor), name)
    ties = tuple(shared[id(tensor)] for _, tensor in model.named_parameters(remove_duplicate=False))
    return modules, tensors, ties


def optimizer_structure(model: nn.Module, optimizer: Any, scheduler: Any) -> Hashable:
    """Equal for two optimizers that differ in numbers alone."""
    names = {id(param): name for name, param in model.named_parameters()}
    rule = rule_of(optimizer)
    groups = tuple(
        (
            tuple(names.get(id(param), "?") for param in group["params"]),
            tuple(bool(group.get(option)) for option in (rule.options if rule else ())),
        )
        for group in optimizer.param_groups
    )
    return type(optimizer), groups, type(scheduler)


def obstacle(task: Task, params: Params, model: nn.Module, optimizer: Any, scheduler: Any) -> str:
    """Why a trial cannot be part of a stack, as far as can be told without trying; or ""."""
    for method in ("augment", "on_epoch_start", "on_epoch_end"):
        if task.has(method):
            return f"{type(task).__name__}.{method} is called for each trial alone"
    if task.has("decode"):
        return f"{type(task).__name__}.decode makes each batch anew"
    if task.micro_batch is not None:
        return f"{type(task).__name__}.micro_batch cuts the batches of each trial alone"
    if params.get("amp", task.amp) == "fp16":
        return "amp='fp16' scales the loss of each trial alone"
    return _optimizer_obstacle(task, model, optimizer, scheduler) or _module_obstacle(model)


def _optimizer_obstacle(task: Task, model: nn.Module, optimizer: Any, scheduler: Any) -> str:
    if task.scheduler_step == "batch":
        if getattr(scheduler, "cycle_momentum", False):
            return f"{type(scheduler).__name__} moves momentum with each batch"
        if isinstance(scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
            return "ReduceLROnPlateau by batch looks at each loss"
    rule = rule_of(optimizer)
    if rule is None:
        return f"{type(optimizer).__name__} has no stacked version"
    for group in optimizer.param_groups:
        found = obstacle_of(rule, group)
        if found is not None:
            return found
    own = {id(param) for param in model.parameters()}
    if any(id(param) not in own for group in optimizer.param_groups for param in group["params"]):
        return "the optimizer has parameters that are not the model's"
    if optimizer._optimizer_step_pre_hooks or optimizer._optimizer_step_post_hooks:
        return "the optimizer has hooks"
    return ""


def _module_obstacle(model: nn.Module) -> str:
    for path, module in model.named_modules():
        where = path or type(model).__name__
        if type(module).get_extra_state is not nn.Module.get_extra_state:
            return f"{where} has get_extra_state"
        if any(isinstance(value, Tensor) for value in vars(module).values()):
            return f"{where} has a tensor that is neither parameter nor buffer"
        if any(getattr(module, hooks) for hooks in _HOOKS):
            return f"{where} has hooks"
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if tensor.is_sparse or tensor.is_complex() or tensor.is_quantized:
            return f"{name} is not a plain tensor"
    for name, param in model.named_parameters():
        if param._backward_hooks or getattr(param, "_post_accumulate_grad_hooks", None):
            return f"{name} has hooks"
        if param.dtype is not torch.float32:
            return f"{name} is {param.dtype}, not float32"
    return ""


def numeric(params: Sequence[Params]) -> dict[str, type]:
    """Params that are numbers in every trial: their names, and whether all are integers."""
    found: dict[str, type] = {}
    for name in params[0]:
        values = [trial.get(name) for trial in params]
        if all(type(value) is float or _is_int64(value) for value in values):
            found[name] = int if all(type(value) is int for value in values) else float
    return found


def _is_int64(value: object) -> bool:
    return type(value) is int and -(2**63) <= value < 2**63


def _attributes(module: nn.Module) -> tuple[tuple[str, str], ...]:
    own: Mapping[str, Any] = vars(module)
    return tuple(
        (name, describe_value(_without_tensors(value)))
        for name, value in sorted(own.items())
        if name not in _OWN
    )


def _without_tensors(value: Any) -> Any:
    """The same with what is compared elsewhere, or need not be, put into words."""
    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)}"
    if isinstance(value, nn.Module | weakref.ref | torch.device | torch.dtype):
        is_plain = isinstance(value, torch.device | torch.dtype)
        return f"{type(value).__name__} {value if is_plain else ''}"
    if isinstance(value, list | tuple):
        return [_without_tensors(item) for item in value]
    if isinstance(value, dict):
        return {key: _without_tensors(item) for key, item in value.items()}
    return value
