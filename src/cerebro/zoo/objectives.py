"""Losses and metrics by the names that Keras gives them, of logits and targets.

Targets are class numbers (rows,) or numbers of the logits' shape, such as probabilities.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from torch import Tensor
from torch.nn import functional

from cerebro.errors import UsageError

#: How many of the largest logits `top_k_categorical_accuracy` looks at.
TOP_K = 5


def categorical_crossentropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of a softmax over the classes.

    >>> import torch
    >>> round(float(categorical_crossentropy(torch.zeros(2, 4), torch.tensor([0, 3]))), 4)
    1.3863
    """
    if targets.is_floating_point():
        targets = _like(logits, targets)
    elif logits.shape[1] == 1:
        raise UsageError(
            "a softmax over one class is always 1: with n_classes 1 use the loss "
            "binary_crossentropy, or give model.n_classes the number of classes."
        )
    return functional.cross_entropy(logits, targets)


def binary_crossentropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Of a sigmoid for each logit.

    >>> import torch
    >>> round(float(binary_crossentropy(torch.zeros(2, 1), torch.tensor([0, 1]))), 4)
    0.6931
    """
    return functional.binary_cross_entropy_with_logits(logits, _like(logits, targets))


def mse(logits: Tensor, targets: Tensor) -> Tensor:
    """The mean square of the difference.

    >>> import torch
    >>> float(mse(torch.zeros(2, 2), torch.tensor([0, 1])))
    0.5
    """
    return functional.mse_loss(logits, _like(logits, targets))


def accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of rows whose largest logit is that of their class.

    With one logit a row it says yes where that is positive.

    >>> import torch
    >>> float(accuracy(torch.tensor([[2.0, 1.0], [2.0, 1.0]]), torch.tensor([0, 1])))
    0.5
    """
    if logits.shape[1] == 1:
        right = (logits > 0) == (_like(logits, targets) > 0.5)
    else:
        right = logits.argmax(1) == _classes(logits, targets)
    return right.float().mean()


def top_k_categorical_accuracy(logits: Tensor, targets: Tensor) -> Tensor:
    """The share of rows whose class is among the five largest logits.

    >>> import torch
    >>> float(top_k_categorical_accuracy(torch.arange(12.0).view(2, 6), torch.tensor([0, 1])))
    0.5
    """
    largest = logits.topk(min(TOP_K, logits.shape[1]), dim=1).indices
    return (largest == _classes(logits, targets).unsqueeze(1)).any(1).float().mean()


Objective = Callable[[Tensor, Tensor], Tensor]
LOSSES: Mapping[str, Objective] = {
    "binary_crossentropy": binary_crossentropy,
    "categorical_crossentropy": categorical_crossentropy,
    "mse": mse,
    "sparse_categorical_crossentropy": categorical_crossentropy,
}
METRICS: Mapping[str, Objective] = {
    "accuracy": accuracy,
    "top_k_categorical_accuracy": top_k_categorical_accuracy,
}


def _classes(logits: Tensor, targets: Tensor) -> Tensor:
    return _like(logits, targets).argmax(1) if targets.is_floating_point() else targets


def _like(logits: Tensor, targets: Tensor) -> Tensor:
    """Targets as numbers of the logits' shape: class numbers become ones and zeros."""
    if not targets.is_floating_point() and logits.shape[1] > 1:
        return functional.one_hot(targets, logits.shape[1]).to(logits.dtype)
    if targets.numel() != logits.numel():
        raise UsageError(
            f"there must be a target for each logit, but the model gives {list(logits.shape)} and "
            f"the data have {list(targets.shape)}: model.n_classes must be the number of targets "
            "of a row."
        )
    return targets.reshape(logits.shape).to(logits.dtype)
