"""Estimators of PyTorch models as the task of a run."""

from __future__ import annotations

import json
import weakref
from dataclasses import replace
from typing import Any, ClassVar, cast

import torch
from torch import nn

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.estimators.generation import Generation
from cerebro.estimators.torch_estimator import Recipe, TorchEstimator
from cerebro.search.wording import show
from cerebro.task import Batch, Task
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Allocate, State, VisitCall, VisitReport
from cerebro.types import Params

#: What to do with the models that were made in this process. Not of the task, which is a value.
_RECIPES: weakref.WeakKeyDictionary[nn.Module, tuple[Recipe, Any]] = weakref.WeakKeyDictionary()
#: Metrics of the models that are being trained, summed over the rows of a visit.


class TorchEstimatorTask(Task):
    """Trains what an estimator_gen_fn makes."""

    framework: ClassVar[str] = "cerebro.estimators.torch_task:TorchEstimatorFramework"

    def __init__(self, generation: Generation) -> None:
        self.generation = generation
        self.code = generation.code
        self.features = generation.features
        self.labels = generation.labels

    def estimator(self, params: Params) -> TorchEstimator:
        """The estimator of a trial, made anew."""
        found = self.generation(params)
        if not isinstance(found, TorchEstimator):
            raise UsageError(
                "estimator_gen_fn must return estimators of one kind, but returned a "
                f"TorchEstimator before, and now {show(found)}."
            )
        return found

    def model(self, params: Params) -> nn.Module:
        estimator = self.estimator(params)
        model: nn.Module = estimator.model
        _RECIPES[model] = estimator.recipe, estimator.make_optimizer(model)
        return model

    def optimizer(self, model: nn.Module, params: Params) -> Any:
        return _RECIPES[model][1]

    def loss(self, model: nn.Module, batch: Batch, params: Params) -> Any:
        recipe = _RECIPES[model][0]
        batch = self._transformed(recipe, batch)
        outputs = recipe.outputs(model, batch, self.features)
        if self.meter is not None and torch.is_grad_enabled():
            with torch.no_grad():
                self.meter.add(recipe.metrics(outputs, batch, self.labels), len(outputs[0]))
        return recipe.loss(outputs, batch, self.labels)

    def metrics(self, model: nn.Module, batch: Batch, params: Params) -> dict[str, Any]:
        recipe = _RECIPES[model][0]
        batch = self._transformed(recipe, batch)
        return recipe.metrics(recipe.outputs(model, batch, self.features), batch, self.labels)

    def predict(self, model: nn.Module, batch: Batch, params: Params) -> Any:
        outputs = _RECIPES[model][0].named_outputs(model, batch, self.features)
        return outputs if len(outputs) > 1 else next(iter(outputs.values()))

    @staticmethod
    def _transformed(recipe: Recipe, batch: Batch) -> Batch:
        return batch if recipe.transformation is None else recipe.transformation(batch)


class TorchEstimatorFramework(TorchFramework):
    """PyTorch, in batches of the size that the estimator says."""

    #: Metrics of training are those of this worker's rows.
    can_join = False

    def __init__(self, task: Task, *, device: str, threads: int, worker: int = 0) -> None:
        super().__init__(task, device=device, threads=threads, worker=worker)
        #: Rows in a batch, by params.
        self._sizes: dict[str, int] = {}

    def train(
        self, call: VisitCall, shard: Shard, state: State | None, allocate: Allocate
    ) -> tuple[State, VisitReport]:
        return super().train(self._sized(call), shard, state, allocate)

    def evaluate(self, call: VisitCall, shard: Shard, state: State) -> VisitReport:
        return super().evaluate(self._sized(call), shard, state)

    def _sized(self, call: VisitCall) -> VisitCall:
        key = json.dumps(call.params[0], sort_keys=True)
        if key not in self._sizes:
            with self._builder.as_guest():
                estimator = cast(TorchEstimatorTask, self.task).estimator(call.params[0])
            self._sizes[key] = estimator.batch_size
        return replace(call, batch_size=self._sizes[key])


def check(estimator: TorchEstimator) -> None:
    """Raise for an optimizer that cannot be made; names of losses were looked at before."""
    estimator.make_optimizer(estimator.model)


def make_task(generation: Generation) -> Task:
    """What a run trains."""
    return TorchEstimatorTask(generation)
