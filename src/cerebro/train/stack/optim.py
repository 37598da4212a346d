"""Optimizers for a stack: one update for all members, each with its own hyperparameters.

The user's own optimizer objects say what to do; they are read, never stepped. What is kept between
steps has the names and values that PyTorch's optimizers keep, so that a member can leave the stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Vectors = Mapping[str, Tensor]
#: What some member of a stack makes use of, e.g. "momentum": the rest is left out of the update.
Features = frozenset[str]
#: (parameter, gradient, slots, numbers, features): changes parameter and slots in place.
Update = Callable[[Tensor, Tensor, Vectors, Vectors, Features], None]
#: (rule, features, state, gradients, numbers of each parameter): updates all parameters.
UpdateAll = Callable[
    ["Rule", Features, Mapping[str, Tensor], Mapping[str, Tensor], Mapping[str, Vectors]], None
]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one class of optimizers updates a parameter."""

    name: str
    #: Numbers that each member has for itself.
    numbers: tuple[str, ...]
    #: Options that members must agree on.
    options: tuple[str, ...]
    #: Options that must have these values.
    fixed: Mapping[str, object]
    #: What is kept per parameter, given the features in use, apart from the number of steps.
    slots: Callable[[Features], tuple[str, ...]]
    has_steps: bool
    update: Update


def rule_of(optimizer: object) -> Rule | None:
    """The rule for this optimizer; None if there is none for its class."""
    return _RULES.get(type(optimizer))


def obstacle_of(rule: Rule, group: Mapping[str, Any]) -> str | None:
    """Why a param group cannot be updated by the rule."""
    for option, value in rule.fixed.items():
        if group.get(option, value) != value:
            return f"{rule.name} with {option}={group[option]!r} has no stacked version"
    return None


def numbers_of(rule: Rule, group: Mapping[str, Any]) -> dict[str, float]:
    """A member's numbers for the parameters of one group."""
    found = {name: group[name] for name in rule.numbers if name in group}
    if "betas" in group:
        found["beta1"], found["beta2"] = group["betas"]
    return {name: float(value) for name, value in found.items()}


def features_of(rule: Rule, groups: Sequence[Mapping[str, Any]]) -> Features:
    """What any of these groups makes use of."""
    used = "momentum", "weight_decay", "lr_decay"
    found = {name for name in used for group in groups if group.get(name)}
    found |= {option for option in rule.options for group in groups if group.get(option)}
    return frozenset(found)


def update_all(
    rule: Rule,
    features: Features,
    tensors: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    numbers: Mapping[str, Vectors],
    update: Update | None = None,
) -> None:
    """Update every parameter of a stack.

    Args:
        tensors: The stack's state by name: `model.<parameter>`, `optimizer.<parameter>.<slot>`.
        grads: The gradient of each parameter that is to be updated.
        numbers: Of each of these parameters: number -> one for each member.
        update: Instead of the rule's own.
    """
    derived: dict[int, Vectors] = {}
    for name, grad in grads.items():
        own = numbers[name]
        if rule.has_steps:
            steps = tensors[f"optimizer.{name}.step"]
            steps.add_(1)
            if id(own) not in derived:
                derived[id(own)] = {**own, **_derive(rule, own, steps)}
            own = derived[id(own)]
        slots = {slot: tensors[f"optimizer.{name}.{slot}"] for slot in rule.slots(features)}
        (update or rule.update)(tensors[f"model.{name}"], grad, slots, own, features)


def _derive(rule: Rule, numbers: Vectors, steps: Tensor) -> dict[str, Tensor]:
    """Numbers that change from step to step."""
    if rule.name == "Adagrad":
        return {"rate": numbers["lr"] / (1 + (steps - 1) * numbers["lr_decay"])}
    if "beta1" not in numbers:
        return {}
    return {
        "rate": numbers["lr"] / (1 - numbers["beta1"] ** steps),
        "root": (1 - numbers["beta2"] ** steps).sqrt(),
    }


def along(vector: Tensor, like: Tensor) -> Tensor:
    """One number a member, to be combined with a tensor of the stack."""
    return vector.view(-1, *[1] * (like.dim() - 1))


def decayed(param: Tensor, grad: Tensor, numbers: Vectors, features: Features) -> Tensor:
    """The gradient with what weight decay adds to it."""
    if "maximize" in features:
        grad = grad.neg()
    if "weight_decay" in features and "decoupled_weight_decay" not in features:
        grad = torch.addcmul(grad, param, along(numbers["weight_decay"], param))
    return grad


def _sgd(param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features) -> None:
    grad = decayed(param, grad, numbers, features)
    if "momentum" in features:
        momentum = along(numbers["momentum"], param)
        kept = slots["momentum_buffer"]
        kept.mul_(momentum).add_(grad)
        grad = torch.addcmul(grad, kept, momentum) if "nesterov" in features else kept
    param.addcmul_(grad, along(numbers["lr"], param), value=-1)


def _adam(
    param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features
) -> None:
    grad = decayed(param, grad, numbers, features)
    if "decoupled_weight_decay" in features and "weight_decay" in features:
        param.mul_(along(1 - numbers["lr"] * numbers["weight_decay"], param))
    mean, square = slots["exp_avg"], slots["exp_avg_sq"]
    mean.lerp_(grad, along(1 - numbers["beta1"], param))
    square.lerp_(grad * grad, along(1 - numbers["beta2"], param))
    root = square.sqrt().div_(along(numbers["root"], param)).add_(along(numbers["eps"], param))
    param.addcmul_(mean / root, along(numbers["rate"], param), value=-1)


def _rmsprop(
    param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features
) -> None:
    grad = decayed(param, grad, numbers, features)
    rest = along(1 - numbers["alpha"], param)
    square = slots["square_avg"]
    square.lerp_(grad * grad, rest)
    spread = square
    if "centered" in features:
        mean = slots["grad_avg"].lerp_(grad, rest)
        spread = torch.addcmul(square, mean, mean, value=-1)
    change = grad / spread.sqrt().add_(along(numbers["eps"], param))
    if "momentum" in features:
        change = slots["momentum_buffer"].mul_(along(numbers["momentum"], param)).add_(change)
    param.addcmul_(change, along(numbers["lr"], param), value=-1)


def _adagrad(
    param: Tensor, grad: Tensor, slots: Vectors, numbers: Vectors, features: Features
) -> None:
    grad = decayed(param, grad, numbers, features)
    total = slots["sum"].addcmul_(grad, grad)
    change = grad / total.sqrt().add_(along(numbers["eps"], param))
    param.addcmul_(change, along(numbers["rate"], param), value=-1)


def _optional(*slots: str, **by_feature: str) -> Callable[[Features], tuple[str, ...]]:
    """These slots always, others where a feature is in use."""

    def choose(features: Features) -> tuple[str, ...]:
        return (*slots, *(slot for feature, slot in by_feature.items() if feature in features))

    return choose


_PLAIN: Mapping[str, object] = {"differentiable": False}
_ADAM = Rule(
    "Adam",
    ("lr", "eps", "weight_decay"),
    ("maximize", "decoupled_weight_decay"),
    {**_PLAIN, "amsgrad": False},
    _optional("exp_avg", "exp_avg_sq"),
    True,
    _adam,
)
_RULES: Mapping[type, Rule] = {
    torch.optim.SGD: Rule(
        "SGD",
        ("lr", "momentum", "weight_decay"),
        ("nesterov", "maximize"),
        {**_PLAIN, "dampening": 0},
        _optional(momentum="momentum_buffer"),
        False,
        _sgd,
    ),
    torch.optim.Adam: _ADAM,
    torch.optim.AdamW: _ADAM,
    torch.optim.RMSprop: Rule(
        "RMSprop",
        ("lr", "alpha", "eps", "weight_decay", "momentum"),
        ("centered", "maximize"),
        _PLAIN,
        _optional("square_avg", momentum="momentum_buffer", centered="grad_avg"),
        True,
        _rmsprop,
    ),
    torch.optim.Adagrad: Rule(
        "Adagrad",
        ("lr", "lr_decay", "eps", "weight_decay"),
        ("maximize",),
        _PLAIN,
        _optional("sum"),
        True,
        _adagrad,
    ),
}
