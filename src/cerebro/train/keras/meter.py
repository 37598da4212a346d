"""Loss and metrics of batches, added up to exact sums over rows."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Mapping
from typing import Any, Self

import keras

from cerebro.errors import TrialError
from cerebro.train.keras.feed import Fed
from cerebro.train.visit import Diverged, Sums

logger = logging.getLogger("cerebro.train")


def train_on(model: Any, fed: Fed) -> Mapping[str, Any]:
    """One step; the loss and metrics of this batch."""
    # In old releases of Keras they would be of all batches so far.
    model.reset_metrics()
    x, y, weight = fed.tensors()
    found: Mapping[str, Any] = model.train_on_batch(x, y, weight, return_dict=True)
    return found


def test_on(model: Any, fed: Fed) -> Mapping[str, Any]:
    """The loss and metrics of this batch."""
    model.reset_metrics()
    x, y, weight = fed.tensors()
    found: Mapping[str, Any] = model.test_on_batch(x, y, weight, return_dict=True)
    return found


class Meter:
    """Adds up what `train_on_batch` and `test_on_batch` give for the batches of one shard.

    Keras computes a metric's mean over a batch, and begins anew with the next. Such means, weighted
    by rows, add up to that of the shard. A metric that is no mean over rows goes on from batch to
    batch instead, so that the last value is that of all rows.

    Use it as a context: the metrics are the model's, and it changes how they begin anew.
    """

    def __init__(self, model: Any) -> None:
        self._model = model
        self._going_on: dict[str, Any] | None = None
        self._totals: dict[str, list[float]] = {}
        self._last: dict[str, float] = {}
        self._names: list[str] = []
        self.rows = 0

    def __enter__(self) -> Self:
        self._model.reset_metrics()
        return self

    def __exit__(self, *exc: object) -> None:
        for metric in (self._going_on or {}).values():
            # What was put before the method of its class.
            del metric.reset_state

    def add(self, logs: Mapping[str, Any], rows: int) -> dict[str, float]:
        """Take what a batch gave; gives it back as numbers."""
        values = {name: _number(name, value) for name, value in logs.items()}
        if "loss" not in values:
            raise TrialError(
                f"train_step and test_step of a model must give a loss, but "
                f"{type(self._model).__name__} gives {', '.join(values) or 'nothing'}."
            )
        if self._going_on is None:
            # Keras makes the metrics when it sees the first batch.
            self._going_on = dict(_others(self._model))
            for metric in self._going_on.values():
                metric.reset_state = _go_on
            self._names = [name for name in values if name != "loss"]
        for name, value in values.items():
            if name in self._going_on:
                self._last[name] = value
            else:
                self._totals.setdefault(name, []).append(value * rows)
        self.rows += rows
        return values

    def sums(self) -> Sums:
        """Name -> (sum over rows, rows): the loss first, then as Keras orders them."""
        found = {name: (_total(parts), self.rows) for name, parts in self._totals.items()}
        found |= {name: (value * self.rows, self.rows) for name, value in self._last.items()}
        return {name: found[name] for name in ("loss", *self._names)}

    def finite_sums(self, prefix: str) -> Sums:
        """The same; raises `Diverged` where one is not finite."""
        found = self.sums()
        for name, (total, rows) in found.items():
            if not math.isfinite(total):
                raise Diverged(f"{prefix}{name} is {total / rows}")
        return found


def warn_of_others(model: Any) -> None:
    """Say which metrics of a model are no means over rows; it has seen a batch."""
    names = [name for name, _ in _others(model)]
    if names:
        logger.warning(
            "%s: no mean over rows, so computed for each shard and averaged over shards, weighted "
            "by rows. It is exact where a split has one shard.",
            ", ".join(names),
        )


def _go_on() -> None:
    """In place of a metric's `reset_state`."""


def _others(model: Any) -> Iterator[tuple[str, Any]]:
    """The metrics of a model that are no means over rows, by their names in its logs."""
    for metric in model.metrics:
        # Those that `compile` was given come together, and name themselves in their result.
        inner = getattr(metric, "metrics", None)
        if inner is None:
            pairs = iter([(metric.name, metric)])
        else:
            pairs = zip(metric.result(), inner, strict=True) if inner else iter(())
        yield from (pair for pair in pairs if not _is_mean(pair[1]))


def _is_mean(metric: Any) -> bool:
    mean = keras.metrics.Mean
    return isinstance(metric, mean) and type(metric).result is mean.result


def _number(name: str, value: Any) -> float:
    try:
        return float(value)
    except (TypeError, ValueError) as error:
        raise TrialError(
            f"a metric must give one number, but {name!r} gives {value!r:.80}."
        ) from error


def _total(parts: list[float]) -> float:
    # fsum raises where infinities of both signs meet.
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)
