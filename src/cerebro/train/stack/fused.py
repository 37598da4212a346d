"""Updates of a stack on the CPU: as few passes over memory as PyTorch allows."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from cerebro.train.stack.optim import Features, Rule, Vectors, along, update_all


class HostUpdate:
    """Updates every parameter, like `update_all`; made anew for each visit."""

    def __init__(self) -> None:
        #: Numbers as they are combined with tensors of so many axes, and the vector each is of.
        self._shaped: dict[tuple[int, int], tuple[Tensor, Tensor]] = {}

    def __call__(
        self,
        rule: Rule,
        features: Features,
        tensors: Mapping[str, Tensor],
        grads: Mapping[str, Tensor],
        numbers: Mapping[str, Vectors],
    ) -> None:
        if rule.name == "Adam":
            _adam(features, tensors, grads, numbers)
        elif rule.name == "SGD" and features <= {"momentum"}:
            for name, grad in grads.items():
                param, own = tensors[f"model.{name}"], numbers[name]
                if features:
                    kept = tensors[f"optimizer.{name}.momentum_buffer"]
                    grad = kept.mul_(self._along(own["momentum"], param)).add_(grad)
                param.addcmul_(grad, self._along(own["lr"], param), value=-1)
        else:
            update_all(rule, features, tensors, grads, numbers)

    def _along(self, vector: Tensor, like: Tensor) -> Tensor:
        key = id(vector), like.dim()
        if key not in self._shaped:
            self._shaped[key] = along(vector, like), vector
        return self._shaped[key][0]


def _adam(
    features: Features,
    tensors: Mapping[str, Tensor],
    grads: Mapping[str, Tensor],
    numbers: Mapping[str, Vectors],
) -> None:
    """Member by member with PyTorch's fused kernel, which takes one number for all parameters."""
    is_decoupled = "decoupled_weight_decay" in features
    fused = torch._fused_adamw_ if is_decoupled else torch._fused_adam_
    groups: dict[int, list[str]] = {}
    for name in grads:
        groups.setdefault(id(numbers[name]), []).append(name)
    for names in groups.values():
        own = {number: vector.tolist() for number, vector in numbers[names[0]].items()}
        steps = [tensors[f"optimizer.{name}.step"] for name in names]
        for step in steps:
            step.add_(1)
        columns = [
            list(zip(*(tensor.unbind(0) for tensor in column), strict=True))
            for column in (
                [tensors[f"model.{name}"] for name in names],
                # PyTorch's kernel walks memory without a look at strides.
                [grads[name].contiguous() for name in names],
                [tensors[f"optimizer.{name}.exp_avg"] for name in names],
                [tensors[f"optimizer.{name}.exp_avg_sq"] for name in names],
                steps,
            )
        ]
        for member, (params, slopes, means, squares, counts) in enumerate(
            zip(*columns, strict=True)
        ):
            fused(
                list(params),
                list(slopes),
                list(means),
                list(squares),
                [],
                list(counts),
                lr=own["lr"][member],
                beta1=own["beta1"][member],
                beta2=own["beta2"][member],
                weight_decay=own["weight_decay"][member],
                eps=own["eps"][member],
                amsgrad=False,
                maximize="maximize" in features,
            )
