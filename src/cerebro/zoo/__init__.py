"""Models that are ready to use, by name.

>>> import cerebro
>>> model = cerebro.zoo.build("resnet_small", num_classes=10)
>>> sum(p.numel() for p in model.parameters())
7690826
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cerebro.errors import MissingDependencyError, UsageError

if TYPE_CHECKING:
    from torch import nn

    from cerebro.zoo.resnet import resnet_small

__all__ = ["MODELS", "build", "resnet_small"]

#: Name of a model -> `module:function`; frameworks are imported at first use.
MODELS: Mapping[str, str] = {"resnet_small": "cerebro.zoo.resnet:resnet_small"}


def build(name: str, **options: Any) -> nn.Module:
    """A new model of this name; options are those of the function with that name.

    Args:
        name: One of `MODELS`.
        options: For example `num_classes=100`.
    """
    if name not in MODELS:
        near = get_close_matches(str(name), MODELS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"unknown model {name!r}. Known models: {', '.join(sorted(MODELS))}.{hint}"
        )
    model: nn.Module = _load(name)(**options)
    return model


def __getattr__(name: str) -> Any:
    if name not in MODELS:
        raise AttributeError(f"module 'cerebro.zoo' has no attribute {name!r}")
    return _load(name)


def __dir__() -> list[str]:
    return __all__


def _load(name: str) -> Any:
    module, _, function = MODELS[name].partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise MissingDependencyError(
            f"model {name!r} needs PyTorch. Install it with `pip install 'cerebro[torch]'`."
        ) from error
