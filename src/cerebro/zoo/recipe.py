"""The task of a recipe: a model, an optimizer and a loss by name, put together from params.

Params have the dotted names of a recipe file's keys, such as `optimizer.lr`: what a trial was
trained with is in its params, all of it.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from cerebro.errors import UsageError
from cerebro.task import Batch, RunFacts, Task
from cerebro.types import Params
from cerebro.zoo import build
from cerebro.zoo.augment import make_augment
from cerebro.zoo.decay import decayed_parameters, parameter_groups
from cerebro.zoo.objectives import LOSSES, METRICS
from cerebro.zoo.optimizers import optimizer_name, optimizer_options
from cerebro.zoo.params import global_batch_size, rule_of, section
from cerebro.zoo.pictures import as_floats
from cerebro.zoo.schedule import RateSchedule

#: Keys of a recipe's optimizer that are not for the class of that name.
_OWN = ("name", "lr", "lr_scaling")

#: What a model last made of a batch in an evaluation, which asks for the loss and then for metrics.
_SEEN: WeakKeyDictionary[nn.Module, tuple[Tensor, Tensor]] = WeakKeyDictionary()


class RecipeTask(Task):
    """Trains what a recipe describes; docs/recipes.md has every key.

    The data have a column `x` of pictures, (channels, height, width) as bytes or as numbers, and a
    column `y` of classes or numbers.

    >>> task = RecipeTask()
    >>> params = {
    ...     "model.name": "mlp6", "model.input_shape": [8, 8, 1], "model.n_classes": 10,
    ...     "optimizer.name": "SGD", "optimizer.lr": 0.1, "batch_size": 32,
    ...     "training.n_epochs": 2, "training.loss": "categorical_crossentropy",
    ... }
    >>> model = task.model(params)
    >>> optimizer, schedule = task.optimizer(model, params)
    >>> batch = {"x": torch.zeros(4, 1, 8, 8, dtype=torch.uint8), "y": torch.arange(4)}
    >>> task.loss(model, batch, params).shape
    torch.Size([])
    """

    scheduler_step = "batch"

    def model(self, params: Params) -> nn.Module:
        return build(**section(params, "model"))

    def optimizer(self, model: nn.Module, params: Params) -> tuple[Any, RateSchedule]:
        optimizer = _make_optimizer(section(params, "optimizer"), model)
        # A model that is only looked at is built without a run.
        facts = self.facts or RunFacts(shard_rows=(1,))
        schedule = RateSchedule(
            optimizer,
            rule_of(params),
            workers=facts.workers,
            steps_per_epoch=facts.steps_per_epoch(global_batch_size(params, facts.workers)),
        )
        return optimizer, schedule

    def loss(self, model: nn.Module, batch: Batch, params: Params) -> Tensor:
        loss = LOSSES[str(params["training.loss"])]
        logits = _logits(model, batch, params)
        if not torch.is_grad_enabled():
            _SEEN[model] = batch["x"], logits
        elif self.meter is not None:
            with torch.no_grad():
                self.meter.add(_metrics(logits, batch, params), len(logits))
        return loss(logits, batch["y"])

    def metrics(self, model: nn.Module, batch: Batch, params: Params) -> dict[str, Tensor]:
        if not params.get("training.metrics"):
            return {}
        seen, logits = _SEEN.pop(model, (None, None))
        if logits is None or seen is not batch["x"]:
            logits = _logits(model, batch, params)
        return _metrics(logits, batch, params)

    def predict(self, model: nn.Module, batch: Batch, params: Params) -> dict[str, Tensor]:
        logits = _logits(model, batch, params)
        if params["training.loss"] == "mse":
            return {"value": logits}
        if logits.shape[1] == 1:
            return {"class": (logits > 0).long().squeeze(1), "probability": logits.sigmoid()}
        return {"class": logits.argmax(1), "probability": logits.softmax(1)}


class AugmentedTask(RecipeTask):
    """The same with the pictures of each training batch changed at random first.

    A class of its own: trials without such changes can be stacked.
    """

    def augment(self, batch: Batch, rng: torch.Generator, params: Params) -> Batch:
        options: Any = params["data.augment"]
        return {**batch, "x": make_augment(options)(batch["x"], rng)} if options else batch


def _metrics(logits: Tensor, batch: Batch, params: Params) -> dict[str, Tensor]:
    names: Any = params.get("training.metrics", [])
    return {name: METRICS[name](logits, batch["y"]) for name in names}


def _logits(model: nn.Module, batch: Batch, params: Params) -> Tensor:
    logits: Tensor = model(as_floats(batch["x"], params.get("data.preprocess", "unit")))
    return logits


def _make_optimizer(settings: Mapping[str, Any], model: nn.Module) -> Any:
    name = optimizer_name(settings["name"])
    options = optimizer_options(name, {k: v for k, v in settings.items() if k not in _OWN})
    cls = getattr(torch.optim, name, None)
    if cls is None:
        raise UsageError(f"PyTorch {torch.__version__} has no optimizer {name}: use a newer one.")
    default = inspect.signature(cls).parameters.get("weight_decay")
    if default is None and _has_l2(model):
        raise UsageError(
            f"L2 on kernels is weight decay, which optimizer {name} does not have: set "
            "model.l2_reg to 0, or take another optimizer."
        )
    if default is not None:
        decay = options.pop("weight_decay", default.default)
        return cls(parameter_groups(model, weight_decay=decay), lr=settings["lr"], **options)
    return cls(model.parameters(), lr=settings["lr"], **options)


def _has_l2(model: nn.Module) -> bool:
    groups = parameter_groups(model)
    return bool(decayed_parameters(model)) and any(group["weight_decay"] for group in groups)
