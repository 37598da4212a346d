"""One training step of a trial: loss, gradients and update of a batch, in parts where asked for."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from cerebro.errors import TrialError, UsageError
from cerebro.task import Batch, Task
from cerebro.train.torch.precision import amp_of, autocast
from cerebro.train.torch.state import Components
from cerebro.train.visit import Diverged, VisitCall


def micro_batch_of(task: Task, call: VisitCall) -> int | None:
    """The most rows that a step may take at a time; None for whole batches."""
    size = task.micro_batch
    is_known = size is None or size == "auto" or (type(size) is int and size >= 1)
    if not is_known:
        raise UsageError(
            f"{type(task).__name__}.micro_batch must be an integer of at least 1, 'auto' or None, "
            f"but is {size!r}."
        )
    if call.micro_batch is not None:
        return call.micro_batch
    return size if isinstance(size, int) else None


class TrainStep:
    """Trains on one batch after the other.

    A batch that is larger than the trial's micro batch is cut: the gradients of its parts add up,
    weighted by their rows, and one update follows. For a loss that is a mean over rows that is the
    update of the whole batch.
    """

    def __init__(self, task: Task, parts: Components, call: VisitCall, device: str) -> None:
        self._task = task
        self._params = call.params[0]
        self._model = parts.model
        self._optimizer = parts.optimizer
        self._scaler = parts.scaler
        self._clip: Any = self._params.get("clip_grad_norm", task.clip_grad_norm)
        self._trained = [p for group in parts.optimizer.param_groups for p in group["params"]]
        self._inside = autocast(amp_of(task, self._params), device) or contextlib.nullcontext
        self._size = micro_batch_of(task, call)
        self._on_cpu = device == "cpu"
        self._number = 0

    def __call__(self, batch: Batch, rows: int) -> Any:
        """The mean loss of the batch: a number on the CPU, else a tensor that is on its way."""
        if self._size is None or rows <= self._size:
            loss = self.loss(batch)
            value = self._value(loss)
            self._optimizer.zero_grad(set_to_none=True)
            self._backward(loss)
        else:
            value = 0.0
            for place, (part, count) in enumerate(split(batch, rows, self._size)):
                loss = self.loss(part) * (count / rows)
                value = value + self._value(loss)
                if place == 0:
                    self._optimizer.zero_grad(set_to_none=True)
                self._backward(loss)
        self._update()
        self._number += 1
        return value

    def loss(self, batch: Batch) -> Tensor:
        """What the task makes of a batch, in the trial's precision."""
        with self._inside():
            loss = self._task.loss(self._model, batch, self._params)
        if not isinstance(loss, Tensor):
            raise UsageError(
                f"{type(self._task).__name__}.loss must return a tensor with one number, but "
                f"returned a {type(loss).__name__}."
            )
        return loss

    def _value(self, loss: Tensor) -> Any:
        if not self._on_cpu:
            return loss.detach()
        value = scalar(loss)
        if not math.isfinite(value):
            raise Diverged(f"loss is {value} at step {self._number} of the visit")
        return value

    def _backward(self, loss: Tensor) -> None:
        scaled = loss if self._scaler is None else self._scaler.scale(loss)
        scaled.backward()

    def _update(self) -> None:
        if self._scaler is not None:
            self._scaler.unscale_(self._optimizer)
        if self._clip is not None:
            torch.nn.utils.clip_grad_norm_(self._trained, self._clip)
        if self._scaler is None:
            self._optimizer.step()
        else:
            self._scaler.step(self._optimizer)
            self._scaler.update()


def require_finite(parts: Components) -> None:
    """Raise where what is trained has numbers that are none."""
    for name, tensor in parts.parameters():
        # A sum is ten times as cheap, and finite unless something is wrong or about to be.
        if (
            tensor.is_floating_point()
            and not math.isfinite(tensor.sum().item())
            and not bool(torch.isfinite(tensor).all())
        ):
            raise Diverged(f"{name} is not finite after the visit")


def split(batch: Batch, rows: int, size: int) -> Iterator[tuple[Batch, int]]:
    """Parts of at most so many rows; what has not one entry for each row is in all of them."""
    cut = {name: value for name, value in batch.items() if length_of(value) == rows}
    if not cut:
        raise UsageError(
            f"a batch must keep its rows to be trained in micro batches, but none of "
            f"{', '.join(map(repr, batch)) or 'no columns'} has {rows} any more: augment() must "
            "leave their number as it is."
        )
    for start in range(0, rows, size):
        stop = min(start + size, rows)
        yield {**batch, **{k: _rows(v, start, stop) for k, v in cut.items()}}, stop - start


def scalar(value: Any, name: str = "loss") -> float:
    """The one number in a tensor, or a number."""
    if not isinstance(value, Tensor):
        return float(value)
    if value.numel() != 1:
        raise TrialError(f"{name} must be one number, but has the shape {list(value.shape)}.")
    return float(value.item())


def length_of(value: object) -> int | None:
    """The entries of a column; None if it has none."""
    if isinstance(value, Tensor):
        return len(value) if value.dim() else None
    try:
        return len(value)  # type: ignore[arg-type]
    except TypeError:
        return None


def _rows(value: Any, start: int, stop: int) -> Any:
    if not isinstance(value, Tensor) or value.layout is not torch.sparse_csr:
        return value[start:stop]
    ends = value.crow_indices()[start : stop + 1]
    first, last = int(ends[0]), int(ends[-1])
    return torch.sparse_csr_tensor(
        ends - first,
        value.col_indices()[first:last],
        value.values()[first:last],
        (stop - start, *value.shape[1:]),
        check_invariants=False,
    )
