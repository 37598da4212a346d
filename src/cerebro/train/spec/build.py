"""What a MiniBatchSpec builds, checked, and its modules as one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from cerebro.errors import UsageError
from cerebro.spec import MiniBatchSpec
from cerebro.task import ParamDict, Task
from cerebro.train.spec.task import batch_size_missing
from cerebro.types import Params

OPTIMIZER = "optimizer"


class Bundle(nn.Module):
    """The modules and parameters of a `model_object`, each under its name there.

    Args:
        model_object: What `create_model_components` returned, or `train`.
        origin: Who did, for errors.
    """

    def __init__(self, model_object: dict[str, Any], origin: str) -> None:
        super().__init__()
        if not isinstance(model_object, dict):
            raise UsageError(
                f"{origin} must return a dict of components by name, but returned a "
                f"{type(model_object).__name__}."
            )
        self._components = model_object
        for name, value in model_object.items():
            if not isinstance(name, str):
                raise UsageError(f"{origin} must name components with text, but one is {name!r}.")
            if isinstance(value, nn.Module | nn.Parameter):
                self._include(name, value, origin)
        _check_optimizer(model_object, origin)
        for name, value in model_object.items():
            if any(isinstance(each, nn.Module) or is_optimizer(each) for each in _inside(value)):
                raise UsageError(
                    f"{origin} must give modules by name, but {name!r} is a "
                    f"{type(value).__name__} that holds some: give each a name of its own, or make "
                    "it an nn.ModuleList or nn.ModuleDict."
                )
        if not any(isinstance(value, nn.Module) for value in model_object.values()):
            raise UsageError(
                f"{origin} must give at least one nn.Module, but gives {_kinds(model_object)}."
            )

    @property
    def components(self) -> dict[str, Any]:
        """The `model_object` itself."""
        return self._components

    def modules_by_name(self) -> dict[str, nn.Module]:
        return {k: v for k, v in self._components.items() if isinstance(v, nn.Module)}

    def _include(self, name: str, value: nn.Module | nn.Parameter, origin: str) -> None:
        if not name or "." in name or hasattr(self, name):
            raise UsageError(
                f"{origin} must name modules with words that a module does not use itself, but one "
                f"is {name!r}: call it {(name or 'net').replace('.', '_')}_, for example."
            )
        if isinstance(value, nn.Module):
            self.add_module(name, value)
        else:
            self.register_parameter(name, value)


class Blueprint(Task):
    """Makes bundles, where a builder asks a task for its model."""

    def __init__(self, spec: MiniBatchSpec) -> None:
        self._spec = spec
        self._origin = f"{type(spec).__name__}.create_model_components"

    def model(self, params: Params) -> Bundle:
        if "batch_size" not in params:
            raise batch_size_missing(self._spec)
        bundle = Bundle(self._spec.create_model_components(ParamDict(params)), self._origin)
        for name, param in bundle.named_parameters():
            if isinstance(param, nn.UninitializedParameter):
                raise UsageError(
                    f"{self._origin} must give parameters a shape, but {name} has none: run lazy "
                    "modules once before you return."
                )
        return bundle


def is_optimizer(value: object) -> bool:
    if isinstance(value, torch.optim.Optimizer):
        return True
    return all(hasattr(value, part) for part in ("param_groups", "state", "step"))


def _check_optimizer(model_object: Mapping[str, Any], origin: str) -> None:
    if OPTIMIZER not in model_object:
        raise UsageError(
            f"{origin} must give an optimizer under the name {OPTIMIZER!r}, but gives "
            f"{_kinds(model_object)}."
        )
    if not is_optimizer(model_object[OPTIMIZER]):
        raise UsageError(
            f"{origin} must give a torch optimizer under the name {OPTIMIZER!r}, but that is a "
            f"{type(model_object[OPTIMIZER]).__name__}."
        )
    others = [n for n, v in model_object.items() if n != OPTIMIZER and is_optimizer(v)]
    if others:
        raise UsageError(
            f"{origin} must give one optimizer, but also gives {others[0]!r}: give {OPTIMIZER!r} "
            "several param groups instead."
        )


def _kinds(model_object: Mapping[str, Any]) -> str:
    return ", ".join(f"{n!r} ({type(v).__name__})" for n, v in model_object.items()) or "nothing"


def _inside(value: object) -> Iterator[object]:
    """What plain containers hold, however deep."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, list | tuple | set | frozenset):
        for item in value:
            yield item
            yield from _inside(item)
