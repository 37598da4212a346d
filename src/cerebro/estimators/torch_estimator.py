"""TorchEstimator: a PyTorch module with its optimizer and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.estimators.dropped import OF_TORCH, refuse
from cerebro.estimators.estimator import Estimator
from cerebro.estimators.rows import Transformation
from cerebro.estimators.torch_losses import NamedLoss, named, optimizer_named
from cerebro.search.wording import show


class TorchEstimator(Estimator):
    """A PyTorch model with its optimizer and loss, for one set of params.

    Args:
        model: An `nn.Module`. Its forward gets the feature columns by name where its arguments are
            called like them, else in their order; floats come in the type of its parameters.
        optimizer: A torch optimizer of the model's parameters, the name of one, or a function that
            makes one of parameters, such as `functools.partial(torch.optim.SGD, lr=0.1)`.
        loss: A name ("mse", "cross_entropy", "bce_with_logits", or of `torch.nn.functional`), or a
            function (output, label) that gives a mean over rows; with several label columns a list
            of names or functions, one for each output.
        metrics: Names ("acc", or of losses) or functions (output, label) that give means over rows,
            of training and of validation; of a model with several outputs they see the first.
        batch_size: Rows in a batch; 32 if left out.
        scheduler: A function that makes a learning-rate scheduler of the optimizer; it steps after
            every epoch.
        transformation_fn: A function of a batch, tensors by column name, that returns the batch to
            train or evaluate on.
        sample_weight_col: A column that weighs the rows in a loss that has a name.

    >>> model = nn.Linear(2, 1)
    >>> TorchEstimator(model=model, optimizer="sgd", loss="mse")
    TorchEstimator(model=Linear, loss='mse', batch_size=32)
    """

    kind = "torch"

    def __init__(
        self,
        *,
        model: nn.Module | None = None,
        optimizer: Any = None,
        loss: Any = None,
        metrics: Sequence[Any] | None = None,
        batch_size: int | None = None,
        scheduler: Callable[[torch.optim.Optimizer], Any] | None = None,
        transformation_fn: Callable[[Any], object] | None = None,
        sample_weight_col: str | None = None,
        **unknown: object,
    ) -> None:
        known = [name for name in _arguments() if name != "unknown"]
        refuse("TorchEstimator", unknown, instead=OF_TORCH, known=known)
        super().__init__(
            model, optimizer, loss, metrics, batch_size, sample_weight_col, transformation_fn
        )
        if not isinstance(model, nn.Module):
            raise UsageError(f"model must be an nn.Module, but got {show(model)}.")
        self.scheduler = scheduler
        self.recipe = Recipe(self)

    def make_optimizer(self, model: nn.Module) -> Any:
        """The optimizer of a model's parameters, or a pair with its scheduler.

        `model` is the estimator's own, or another one of the same structure.
        """
        optimizer = self._optimizer_of(model)
        return optimizer if self.scheduler is None else (optimizer, self.scheduler(optimizer))

    def _optimizer_of(self, model: nn.Module) -> torch.optim.Optimizer:
        given = self.optimizer
        if isinstance(given, str):
            return optimizer_named(given)(model.parameters())  # type: ignore[call-arg]
        if isinstance(given, torch.optim.Optimizer):
            own = {id(param) for param in model.parameters()}
            if all(id(p) in own for group in given.param_groups for p in group["params"]):
                return given
            raise UsageError(
                "optimizer must have been made of parameters of the estimator's model, but has "
                "others: make it as in torch.optim.Adam(model.parameters())."
            )
        found = given(model.parameters()) if callable(given) else given
        if not isinstance(found, torch.optim.Optimizer):
            raise UsageError(
                "optimizer must be a torch optimizer, the name of one, or a function that makes "
                f"one of parameters, but got {show(given)}."
            )
        return found


def _arguments() -> list[str]:
    return list(inspect.signature(TorchEstimator).parameters)


class Recipe:
    """What an estimator does with a batch, whatever the weights of its model."""

    def __init__(self, estimator: TorchEstimator) -> None:
        losses = estimator.loss if isinstance(estimator.loss, list | tuple) else [estimator.loss]
        self._losses = [_loss_of(loss) for loss in losses]
        first = self._losses[0]
        threshold = first.threshold if isinstance(first, NamedLoss) else 0.5
        self._metrics = dict(named(metric, threshold) for metric in estimator.metrics)
        self._weights = estimator.sample_weight_col
        if self._weights and not all(isinstance(loss, NamedLoss) for loss in self._losses):
            raise UsageError(
                "sample_weight_col needs a loss with a name, such as 'mse': a function of yours "
                "weighs its rows itself."
            )
        self.transformation: Transformation | None = estimator.transformation
        accepted = inspect.signature(estimator.model.forward).parameters
        self._arguments = frozenset(accepted)

    def outputs(
        self, model: nn.Module, batch: Mapping[str, Any], features: Sequence[str]
    ) -> list[Tensor]:
        """What the model makes of a batch: one tensor for each of its outputs."""
        return list(self.named_outputs(model, batch, features).values())

    def named_outputs(
        self, model: nn.Module, batch: Mapping[str, Any], features: Sequence[str]
    ) -> dict[str, Tensor]:
        """The same by name; of a model that gives no names, by number."""
        dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
        inputs = {name: _cast(batch[name], dtype) for name in features}
        is_named = set(features) <= self._arguments
        found = model(**inputs) if is_named else model(*inputs.values())
        if isinstance(found, Mapping):
            return dict(found)
        parts = found if isinstance(found, list | tuple) else [found]
        return {str(number): part for number, part in enumerate(parts)}

    def loss(
        self, outputs: Sequence[Tensor], batch: Mapping[str, Any], labels: Sequence[str]
    ) -> Any:
        """The loss of a batch, summed over outputs."""
        if len(self._losses) == 1 and len(labels) > 1:
            losses = self._losses * len(labels)
        else:
            losses = self._losses
        if not len(losses) == len(labels) <= len(outputs):
            raise UsageError(
                f"each label needs an output of the model and a loss, but there are {len(labels)} "
                f"label columns, {len(outputs)} outputs and {len(losses)} losses."
            )
        options = {} if self._weights is None else {"weights": batch[self._weights]}
        parts = [
            loss(output, batch[label], **options)
            for loss, output, label in zip(losses, outputs, labels, strict=False)
        ]
        return sum(parts[1:], start=parts[0])

    def metrics(
        self, outputs: Sequence[Tensor], batch: Mapping[str, Any], labels: Sequence[str]
    ) -> dict[str, Any]:
        """The metrics of a batch, by name."""
        return {
            name: metric(outputs[0], batch[labels[0]]) for name, metric in self._metrics.items()
        }


def _loss_of(loss: object) -> Any:
    if isinstance(loss, str):
        return NamedLoss(loss)
    if not callable(loss):
        raise UsageError(
            "loss must be a name, such as 'mse', or a function (output, label), but got "
            f"{show(loss)}."
        )
    return loss


def _cast(value: Any, dtype: torch.dtype) -> Any:
    return value.to(dtype) if isinstance(value, Tensor) and value.is_floating_point() else value
