"""Calls of a MiniBatchSpec's methods, with what they return checked and added up."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from cerebro.errors import UsageError
from cerebro.train.spec.batches import Minibatch
from cerebro.train.spec.task import SpecTask, as_number, is_loss, named_metrics
from cerebro.train.visit import Batches, Diverged, Sums
from cerebro.types import Params

ModelObject = dict[str, Any]


class SpecSteps:
    """What a spec does with one minibatch on one device."""

    def __init__(self, task: SpecTask, device: torch.device) -> None:
        self.spec = task.spec
        self._device = device
        self._judge = task.val_test
        self.name = type(task.spec).__name__

    @property
    def judge_name(self) -> str:
        return f"{self.name}.{self._judge or 'val_test'}"

    def train(
        self, model_object: ModelObject, batch: Minibatch, params: Params
    ) -> tuple[ModelObject, dict[str, object]]:
        """Train on it: the model_object from now on, and metrics."""
        what = f"{self.name}.train"
        made = self.spec.train(model_object, batch.parts, params, self._device)
        if isinstance(made, tuple):
            if len(made) != 2 or not isinstance(made[0], dict):
                kinds = ", ".join(type(each).__name__ for each in made)
                raise UsageError(
                    f"{what} must return metrics, or the pair (model_object, metrics), but "
                    f"returned a tuple of ({kinds})."
                )
            model_object, made = made
        return model_object, named_metrics(made, what)

    def judge(
        self, model_object: ModelObject, batch: Minibatch, params: Params
    ) -> dict[str, object]:
        """Its metrics in validation or test."""
        method = getattr(self.spec, self._judge or "val_test")
        if self._judge is None:
            raise UsageError(
                f"{self.name} must define val_test to be evaluated, but does not: write "
                "val_test(self, model_object, minibatch, hyperparams, device)."
            )
        made = method(model_object, batch.parts, params, self._device)
        return named_metrics(made, self.judge_name)

    def predict(
        self, model_object: ModelObject, batch: Minibatch, params: Params
    ) -> tuple[Any, Any]:
        """Classes and probabilities, each with one entry for each row."""
        what = f"{self.name}.predict"
        made = self.spec.predict(model_object, batch.parts, params, self._device)
        if not isinstance(made, tuple | list) or len(made) != 2:
            raise UsageError(
                f"{what} must return the pair (classes, probabilities), but returned a "
                f"{type(made).__name__}."
            )
        for part, values in zip(("classes", "probabilities"), made, strict=True):
            rows = len(values) if hasattr(values, "__len__") else None
            if rows != batch.rows:
                got = f"a {type(values).__name__}" if rows is None else f"{rows}"
                raise UsageError(
                    f"{what} must give {part} for each of the {batch.rows} rows of a minibatch, "
                    f"but gave {got}."
                )
        return made[0], made[1]


class Tally:
    """Metrics of batch after batch.

    Args:
        what: The method that gives them, for errors.
        prefix: What their names begin with in reports: "train_" or "val_".
        is_strict: Values that are not finite are `Diverged`: a loss at once, others in `sums`.
    """

    def __init__(self, what: str, prefix: str, *, is_strict: bool = True) -> None:
        self._what = what
        self._prefix = prefix
        self._is_strict = is_strict
        self._values: dict[str, list[Any]] = {}
        self._rows: dict[str, list[int]] = {}
        self.sizes: list[int] = []

    def add(self, metrics: dict[str, object], rows: int) -> None:
        """Take those of one more batch; values on an accelerator are not waited for."""
        for name, value in metrics.items():
            kept: Any
            if isinstance(value, Tensor) and not value.is_cpu and value.numel() == 1:
                kept = value.detach().reshape(())
            else:
                kept = as_number(value, self._what, name)
                self._check(name, kept, len(self.sizes))
            self._values.setdefault(name, []).append(kept)
            self._rows.setdefault(name, []).append(rows)
        self.sizes.append(rows)

    def batches(self) -> Batches:
        """Per metric its value in each batch that has it."""
        return {name: (self._numbers(name), rows) for name, rows in self._rows.items()}

    def sums(self) -> Sums:
        """Sums over rows."""
        found: Sums = {}
        for name, (values, rows) in self.batches().items():
            strange = next((value for value in values if not math.isfinite(value)), None)
            if strange is not None and self._is_strict:
                raise Diverged(
                    f"{self._prefix}{name} is {strange} in a batch (where a metric has no value, "
                    "leave it out)"
                )
            weighed = [value * count for value, count in zip(values, rows, strict=True)]
            # fsum raises where infinities of both signs meet.
            total = math.fsum(weighed) if strange is None else sum(weighed)
            found[name] = total, sum(rows)
        return found

    def losses(self) -> tuple[float, ...]:
        """The metric "loss" of each batch; empty where some have none."""
        values = self._numbers("loss") if "loss" in self._values else []
        return tuple(values) if len(values) == len(self.sizes) else ()

    def _numbers(self, name: str) -> list[float]:
        values = self._values[name]
        if any(isinstance(value, Tensor) for value in values):
            if all(isinstance(value, Tensor) for value in values):
                values = torch.stack(values).tolist()
            self._values[name] = values = [float(value) for value in values]
            for number, value in enumerate(values):
                self._check(name, value, number)
        return values

    def _check(self, name: str, value: float, number: int) -> None:
        if self._is_strict and is_loss(name) and not math.isfinite(value):
            raise Diverged(f"{self._prefix}{name} is {value} at step {number} of the visit")
