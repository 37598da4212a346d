"""A MiniBatchSpec as the task of a run, and what becomes of its metrics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import ClassVar

from cerebro.errors import TrialError, UsageError
from cerebro.spec import BatchValues, MiniBatchSpec
from cerebro.task import ParamDict, Task
from cerebro.train.codec import plain_text
from cerebro.train.visit import Batches
from cerebro.types import Metrics, Params


class SpecTask(Task):
    """What a run sees of a MiniBatchSpec: a task of a framework of its own."""

    framework: ClassVar[str] = "spec"

    def __init__(self, spec: MiniBatchSpec) -> None:
        name = type(spec).__name__
        if spec.has("val_test") and spec.has("valtest"):
            raise UsageError(
                f"{name} must define val_test or valtest, which are two names of the same method, "
                "but defines both. Keep one."
            )
        for method in ("create_model_components", "train"):
            if not spec.has(method):
                raise UsageError(f"{name} must define {method}, but does not.")
        self.spec = spec

    @property
    def val_test(self) -> str | None:
        """The name of its val_test; None if it has none."""
        return next((name for name in ("val_test", "valtest") if self.spec.has(name)), None)


def as_task(written: Task | MiniBatchSpec) -> Task:
    """The task that a user has written, in either style."""
    return SpecTask(written) if isinstance(written, MiniBatchSpec) else written


def batch_size_missing(spec: MiniBatchSpec) -> UsageError:
    """For params without one."""
    return UsageError(
        f"the params of a MiniBatchSpec must have a batch_size, but those of "
        f'{type(spec).__name__} have none: add it to the space, say "batch_size": [32, 64].'
    )


def is_loss(name: str) -> bool:
    """Whether a metric of this name must be finite for a trial to go on."""
    return name == "loss" or name.endswith("_loss")


def named_metrics(found: object, what: str) -> dict[str, object]:
    """What a method returned as metrics, checked as far as names go."""
    if not isinstance(found, Mapping):
        raise UsageError(
            f"{what} must return a dict of numbers by name, but returned a {type(found).__name__}."
        )
    for name in found:
        if not isinstance(name, str):
            raise UsageError(f"{what} must name its metrics with text, but one is {name!r:.80}.")
    return {plain_text(name): value for name, value in found.items()}


def as_number(value: object, what: str, name: str) -> float:
    """A metric's value, be it a number or a tensor with one."""
    try:
        if isinstance(value, str | bytes | bytearray):
            raise TypeError("text is no number")
        item = getattr(value, "item", None)
        return float(item() if callable(item) else value)  # type: ignore[arg-type]  # what it is
    except (TypeError, ValueError, RuntimeError):
        shape = getattr(value, "shape", None)
        got = f"a {type(value).__name__}" + (f" of shape {list(shape)}" if shape else "")
        raise UsageError(
            f"{what} must give one number for {name!r}, or a tensor with one, but gave {got}: "
            f"{value!r:.80}."
        ) from None


def aggregate(spec: MiniBatchSpec, mode: str, params: Params, batches: Batches) -> Metrics:
    """What the spec makes of the metrics of all batches; an error unless all are finite."""
    what = f"{type(spec).__name__}.metrics_agg"
    lists = {name: BatchValues(*pair) for name, pair in batches.items()}
    found = named_metrics(spec.metrics_agg(mode, ParamDict(params), lists), what)
    metrics = {name: as_number(value, what, name) for name, value in found.items()}
    for name, number in metrics.items():
        if not math.isfinite(number):
            raise TrialError(f"{what} must return finite numbers, but {mode}_{name} is {number}.")
    return metrics
