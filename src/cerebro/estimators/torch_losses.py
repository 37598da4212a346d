"""Losses and metrics of a TorchEstimator, by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from cerebro.errors import UsageError
from cerebro.search.wording import show, unknown

#: Of what a model gives and what is right: one number, or with reduction="none" one a row.
Function: TypeAlias = Callable[..., Any]

#: Whose labels are numbers of classes.
_OF_CLASSES = (functional.cross_entropy, functional.nll_loss, functional.multi_margin_loss)

LOSSES: Mapping[str, Function] = {
    "bce": functional.binary_cross_entropy,
    "bce_with_logits": functional.binary_cross_entropy_with_logits,
    "binary_cross_entropy": functional.binary_cross_entropy,
    "binary_cross_entropy_with_logits": functional.binary_cross_entropy_with_logits,
    "cross_entropy": functional.cross_entropy,
    "huber": functional.huber_loss,
    "mae": functional.l1_loss,
    "mse": functional.mse_loss,
    "nll": functional.nll_loss,
    "smooth_l1": functional.smooth_l1_loss,
}


def loss_named(name: str) -> Function:
    """The loss of a name; those of `torch.nn.functional` have theirs too.

    >>> loss_named("mse").__name__, loss_named("l1_loss").__name__
    ('mse_loss', 'l1_loss')
    """
    found = LOSSES.get(name) or _of_functional(name)
    if found is None:
        raise UsageError(
            f"{unknown('loss', name, LOSSES)} A function of torch.nn.functional, or one of your "
            "own, is taken as well."
        )
    return found


def _of_functional(name: str) -> Function | None:
    """A loss among the functions of `torch.nn.functional`: those can be reduced over rows."""
    found = getattr(functional, name, None)
    is_loss = inspect.isfunction(found) and "reduction" in inspect.signature(found).parameters
    return found if is_loss else None


def aligned(loss: Function, output: Tensor, label: Tensor) -> tuple[Tensor, Tensor]:
    """Both in the shape and type that a named loss compares: never broadcast against each other."""
    if loss in _OF_CLASSES:
        if label.dim() == output.dim() and label.shape[-1:] == (1,):
            label = label.squeeze(-1)
        is_class = label.dim() < output.dim()
        return output, label.long() if is_class else label.to(output.dtype)
    if label.shape != output.shape and label.numel() == output.numel():
        label = label.reshape(output.shape)
    if label.shape != output.shape:
        raise UsageError(
            f"the model must give a number for each label, but its output is "
            f"{list(output.shape)} and the labels {list(label.shape)}."
        )
    return output, label.to(output.dtype)


class NamedLoss:
    """A loss that is called by its name: it aligns labels with outputs, and weighs rows."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.function = loss_named(name)

    def __call__(self, output: Tensor, label: Tensor, weights: Tensor | None = None) -> Tensor:
        output, label = aligned(self.function, output, label)
        if weights is None:
            return self.function(output, label)  # type: ignore[no-any-return]
        each = self.function(output, label, reduction="none").reshape(len(output), -1).mean(1)
        found: Tensor = (each * weights.reshape(-1).to(each.dtype)).mean()
        return found

    @property
    def threshold(self) -> float:
        """What a single output must exceed to say yes."""
        return 0.0 if "logits" in self.function.__name__ else 0.5


class Accuracy:
    """The part of the rows that are right: by the largest output, or by one above a threshold."""

    def __init__(self, name: str, threshold: float) -> None:
        self.name = name
        self._threshold = threshold

    def __call__(self, output: Tensor, label: Tensor) -> Tensor:
        if output.dim() > 1 and output.shape[1] > 1:
            said = output.argmax(1)
            right = label.argmax(1) if label.shape == output.shape else label.reshape(said.shape)
            return (said == right).float().mean()
        yes = output.reshape(-1) > self._threshold
        return (yes == (label.reshape(-1) > 0.5)).float().mean()


def metric_named(name: str, threshold: float) -> Function:
    """The metric of a name: a mean over rows."""
    if name in ("acc", "accuracy"):
        return Accuracy(name, threshold)
    if name in LOSSES or _of_functional(name) is not None:
        return NamedLoss(name)
    raise UsageError(
        f"{unknown('metric', name, ['acc', 'accuracy', *LOSSES])} A function (output, label) of "
        "your own, that gives a mean over rows, is taken as well."
    )


def named(metric: object, threshold: float) -> tuple[str, Function]:
    """A metric as an estimator has it, with its name."""
    if isinstance(metric, str):
        return metric, metric_named(metric, threshold)
    name = getattr(metric, "name", None) or getattr(metric, "__name__", None)
    if not callable(metric) or not isinstance(name, str):
        raise UsageError(
            "a metric must be a name, such as 'acc', or a function (output, label) with a name, "
            f"but got {show(metric)}."
        )
    return name, metric


def optimizer_named(name: str) -> type[torch.optim.Optimizer]:
    """The optimizer class of a name, whatever its case."""
    classes = {
        key.lower(): found
        for key, found in vars(torch.optim).items()
        if isinstance(found, type) and issubclass(found, torch.optim.Optimizer)
    }
    classes.pop("optimizer", None)
    if name.lower() not in classes:
        raise UsageError(unknown("optimizer", name, sorted(classes)))
    return classes[name.lower()]
