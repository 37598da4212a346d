"""Models that are ready to use, by name, and what is needed to train them as documented.

>>> import cerebro
>>> model = cerebro.zoo.build("cnn", input_shape=(32, 32, 3), n_classes=10, dropout=0.1)
>>> sum(p.numel() for p in model.parameters())
156074
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from cerebro.errors import MissingDependencyError, UsageError
from cerebro.zoo.inputs import check_options

if TYPE_CHECKING:
    from torch import nn

    from cerebro.zoo.augment import make_augment
    from cerebro.zoo.convnet import cnn
    from cerebro.zoo.decay import decayed_parameters, parameter_groups
    from cerebro.zoo.mlp import mlp6
    from cerebro.zoo.resnet import resnet50, resnet_small

__all__ = [
    "MODELS",
    "build",
    "cnn",
    "decayed_parameters",
    "make_augment",
    "mlp6",
    "parameter_groups",
    "resnet50",
    "resnet_small",
]

#: Name of a model -> `module:function`; frameworks are imported at first use.
MODELS: Mapping[str, str] = {
    "cnn": "cerebro.zoo.convnet:cnn",
    "mlp6": "cerebro.zoo.mlp:mlp6",
    "resnet50": "cerebro.zoo.resnet:resnet50",
    "resnet_small": "cerebro.zoo.resnet:resnet_small",
}
_LAZY: Mapping[str, str] = {
    **MODELS,
    "decayed_parameters": "cerebro.zoo.decay:decayed_parameters",
    "make_augment": "cerebro.zoo.augment:make_augment",
    "parameter_groups": "cerebro.zoo.decay:parameter_groups",
}


def build(
    name: str, input_shape: Sequence[int] = (32, 32, 3), n_classes: int = 10, **options: Any
) -> nn.Module:
    """A new model of this name, which gives logits.

    Args:
        name: One of `MODELS`.
        input_shape: (height, width, channels) of a picture; a batch is (rows, channels, height,
            width).
        n_classes: Logits for each picture.
        options: Those of the function with that name, for example `dropout=0.1`.
    """
    if name not in MODELS:
        near = get_close_matches(str(name), MODELS, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        raise UsageError(
            f"unknown model {name!r}. Known models: {', '.join(sorted(MODELS))}.{hint}"
        )
    check_options(name, options)
    model: nn.Module = _load(name)(input_shape, n_classes, **options)
    return model


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'cerebro.zoo' has no attribute {name!r}")
    return _load(name)


def __dir__() -> list[str]:
    return __all__


def _load(name: str) -> Any:
    module, _, function = _LAZY[name].partition(":")
    try:
        return getattr(importlib.import_module(module), function)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        what = f"model {name!r}" if name in MODELS else f"cerebro.zoo.{name}"
        raise MissingDependencyError(
            f"{what} needs PyTorch. Install it with `pip install 'cerebro[torch]'`."
        ) from error
