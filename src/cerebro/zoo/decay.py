"""Which parameters of a model are kept small, and how an optimizer is told."""

from __future__ import annotations

from typing import Any

from torch import nn
from torch.nn.modules.conv import _ConvNd

from cerebro.errors import UsageError


def decayed_parameters(model: nn.Module) -> list[nn.Parameter]:
    """The kernels of convolutions and dense layers, each once: no biases, no batch norms.

    >>> model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.Flatten(), nn.Linear(8, 2))
    >>> [tuple(kernel.shape) for kernel in decayed_parameters(model)]
    [(8, 3, 3, 3), (2, 8)]
    """
    kernels: dict[int, nn.Parameter] = {}
    for module in model.modules():
        if isinstance(module, _ConvNd | nn.Linear) and isinstance(module.weight, nn.Parameter):
            kernels[id(module.weight)] = module.weight
    return list(kernels.values())


def parameter_groups(
    model: nn.Module, *, weight_decay: float = 0.0, l2_reg: float | None = None
) -> list[dict[str, Any]]:
    """The parameters as an optimizer takes them, with L2 on kernels as weight decay.

    `l2_reg` times the sum of squares in the loss has the gradient of a weight decay of twice that
    number, in optimizers that add weight decay to the gradient (SGD, Adam, RMSprop and most others;
    AdamW does not). A model without L2 gives a single group.

    Args:
        model: For example one of `cerebro.zoo.build`.
        weight_decay: Of all parameters, in addition.
        l2_reg: By default what the model was built with, or 0 if it says nothing.

    >>> import cerebro
    >>> groups = parameter_groups(cerebro.zoo.build("resnet_small"))
    >>> [(len(group["params"]), group["weight_decay"]) for group in groups]
    [(30, 0.0001), (88, 0.0)]
    """
    if l2_reg is None:
        l2_reg = _l2_of(model)
    for name, value in (("weight_decay", weight_decay), ("l2_reg", l2_reg)):
        if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 0:
            raise UsageError(f"`{name} >= 0` must hold, but got {name}={value!r}.")
    if not l2_reg:
        return [{"params": list(model.parameters()), "weight_decay": weight_decay}]
    kernels = decayed_parameters(model)
    known = {id(kernel) for kernel in kernels}
    return [
        {"params": kernels, "weight_decay": weight_decay + 2 * l2_reg},
        {
            "params": [each for each in model.parameters() if id(each) not in known],
            "weight_decay": weight_decay,
        },
    ]


def _l2_of(model: nn.Module) -> float:
    """What the model, or the one inside it, was built with."""
    for module in model.modules():
        found = getattr(module, "l2_reg", None)
        if isinstance(found, float):
            return found
    return 0.0
