"""What a task builds for PyTorch, checked; and built again for a hop without wasted work."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.train.seeds import derive_seed, seed_host
from cerebro.types import Params

#: In-place random fills, by PyTorch's methods and by torch.nn.init.
_FILLS = frozenset(
    {"uniform_", "normal_", "trunc_normal_", "kaiming_uniform_", "kaiming_normal_"}
    | {"xavier_uniform_", "xavier_normal_", "orthogonal_", "sparse_", "bernoulli_"}
    | {"exponential_", "log_normal_", "cauchy_", "geometric_", "random_"}
)
_DRAWS = frozenset(
    {"rand", "randn", "randint", "randperm", "rand_like", "randn_like", "randint_like", "normal"}
    | {"bernoulli", "multinomial", "poisson", "dropout", "alpha_dropout", "feature_dropout"}
)
#: What may be asked of a parameter without looking at its values.
_SHAPE = frozenset(
    {"size", "dim", "numel", "stride", "element_size", "is_floating_point", "is_complex"}
    | {"is_contiguous", "requires_grad_", "zero_", "fill_", "ones_", "zeros_", "constant_"}
    | {"__hash__", "__len__", "__set__"}
)
_SHAPE_ATTRIBUTES = frozenset(
    {"shape", "dtype", "device", "ndim", "requires_grad", "is_leaf", "layout"}
)


class _NeedsValues(BaseException):
    """The model cannot be built without its initial weights."""


class _SkipFills(TorchFunctionMode):
    """Leaves parameters unfilled; raises as soon as their values, or any random draw, matter."""

    def __init__(self) -> None:
        super().__init__()
        # The tensors themselves, so that no id is used twice.
        self._skipped: dict[int, torch.Tensor] = {}

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        name = getattr(func, "__name__", "")
        if name in _FILLS:
            target = args[0] if args else given.get("tensor")
            if not isinstance(target, nn.Parameter) or given.get("generator") is not None:
                raise _NeedsValues
            self._skipped[id(target)] = target
            return target
        if name in _DRAWS or (not self._is_harmless(func, name) and self._reads((args, given))):
            raise _NeedsValues
        return func(*args, **given)

    def _reads(self, value: object) -> bool:
        if isinstance(value, tuple | list):
            return any(map(self._reads, value))
        if isinstance(value, Mapping):
            return any(map(self._reads, value.values()))
        return id(value) in self._skipped

    def _is_harmless(self, func: object, name: str) -> bool:
        if name == "__get__":
            return getattr(getattr(func, "__self__", None), "__name__", "") in _SHAPE_ATTRIBUTES
        return name in _SHAPE


class Builder:
    """Builds a task's model and optimizer for a trial, the same each time it is asked."""

    def __init__(self, task: Task, device: torch.device) -> None:
        self._task = task
        self._device = device
        self._can_skip = True
        self._seed: Callable[[int], None] = seed_everything

    @contextlib.contextmanager
    def as_guest(self) -> Iterator[None]:
        """Build without a trace in the caller's generators; those of accelerators are not used."""
        before = random.getstate(), np.random.get_state(), torch.get_rng_state()
        self._seed = _seed_cpu
        try:
            yield
        finally:
            self._seed = seed_everything
            random.setstate(before[0])
            np.random.set_state(before[1])
            torch.set_rng_state(before[2])

    def model(self, seed: int, trial: int, params: Params, *, on_host: bool = False) -> nn.Module:
        """The trial's model with its initial weights, on the device unless told otherwise."""
        self._seed(derive_seed("model", seed, trial))
        model = self._task.model(params)
        if not isinstance(model, nn.Module):
            raise UsageError(
                f"{type(self._task).__name__}.model must return an nn.Module, but returned a "
                f"{type(model).__name__}."
            )
        for name, param in model.named_parameters():
            if isinstance(param, nn.UninitializedParameter):
                raise UsageError(
                    f"{type(self._task).__name__}.model must give its parameters a shape, but "
                    f"{name} has none: run lazy modules once before you return."
                )
        return model if on_host or self._device.type == "cpu" else model.to(self._device)

    def skeleton(self, seed: int, trial: int, params: Params) -> nn.Module:
        """The trial's model to be given a state: all but its parameters is as in `model`.

        Drawing initial weights costs several times the copy of a state, so it is left out where
        nothing can depend on them: no other draw is made and no weight is looked at.
        """
        if not self._can_skip:
            return self.model(seed, trial, params)
        self._seed(derive_seed("model", seed, trial))
        before = torch.default_generator.get_state()
        try:
            with _SkipFills():
                model = self._task.model(params)
            if torch.equal(before, torch.default_generator.get_state()):
                return model if self._device.type == "cpu" else model.to(self._device)  # type: ignore[no-any-return]
        except _NeedsValues:
            pass
        self._can_skip = False
        return self.model(seed, trial, params)

    def optimizer(self, model: nn.Module, seed: int, trial: int, params: Params) -> tuple[Any, Any]:
        """The trial's optimizer and its scheduler, if any."""
        name = type(self._task).__name__
        # Building the model may have drawn from the generators, or left that out.
        self._seed(derive_seed("optimizer", seed, trial))
        made = self._task.optimizer(model, params)
        optimizer, scheduler = made if isinstance(made, tuple) and len(made) == 2 else (made, None)
        if isinstance(optimizer, torch.optim.LBFGS):
            raise UsageError(
                f"{name}.optimizer must return an optimizer that makes a step from one gradient, "
                "but LBFGS computes the loss several times a step: use it in a MiniBatchSpec."
            )
        if not all(hasattr(optimizer, part) for part in ("param_groups", "state", "step")):
            raise UsageError(
                f"{name}.optimizer must return a torch optimizer or a pair (optimizer, scheduler), "
                f"but returned a {type(made).__name__}."
            )
        if scheduler is not None and (
            not hasattr(scheduler, "state_dict") or hasattr(scheduler, "param_groups")
        ):
            raise UsageError(
                f"the second of the pair that {name}.optimizer returns must be a learning-rate "
                f"scheduler, but is a {type(scheduler).__name__}."
            )
        if self._task.scheduler_step not in ("epoch", "batch"):
            raise UsageError(
                f"{name}.scheduler_step must be 'epoch' or 'batch', but is "
                f"{self._task.scheduler_step!r}."
            )
        return optimizer, scheduler


def seed_everything(seed: int) -> None:
    """Seed the global generators of Python, NumPy and PyTorch."""
    if torch.accelerator.is_available():
        seed_host(seed)
        torch.manual_seed(seed)
    else:
        # The same, at a hundredth of the cost.
        _seed_cpu(seed)


def _seed_cpu(seed: int) -> None:
    seed_host(seed)
    torch.default_generator.manual_seed(seed)
