"""PyTorch: several models score the batches of a shard together."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.task import Batch, Task
from cerebro.train.score.calls import MemberScore, ScoreCall, ScoreMode, ScoreReport
from cerebro.train.score.columns import Predictions
from cerebro.train.seeds import derive_seed
from cerebro.train.torch.batches import TorchBatches
from cerebro.train.torch.build import seed_everything
from cerebro.train.torch.memory import explained
from cerebro.train.torch.metrics import metrics_of
from cerebro.train.torch.precision import amp_of, autocast, precision
from cerebro.train.torch.step import scalar
from cerebro.types import Params

_HINT = "Use a smaller batch_size, or fewer workers."


class _Member:
    """One model, and what it made of the batches so far."""

    def __init__(self, task: Task, model: nn.Module, params: Params, device: str) -> None:
        self.model = model
        self.params = params
        self.predictions = Predictions(f"{type(task).__name__}.predict")
        self._task = task
        self._amp = amp_of(task, params)
        self._inside = autocast(self._amp, device) or contextlib.nullcontext
        self._totals: dict[str, list[float]] = {}
        self._rows: dict[str, int] = {}

    def test(self, batch: Batch, rows: int) -> None:
        with precision(self._amp), self._inside():
            values = {"loss": self._task.loss(self.model, batch, self.params)}
            values.update(metrics_of(self._task, self.model, batch, self.params))
        for name, value in values.items():
            self._totals.setdefault(name, []).append(scalar(value, name) * rows)
            self._rows[name] = self._rows.get(name, 0) + rows

    def predict(self, batch: Batch, rows: int) -> None:
        with precision(self._amp), self._inside():
            found = self._task.predict(self.model, batch, self.params)
        if isinstance(found, dict):
            found = {name: _on_host(value) for name, value in found.items()}
        self.predictions.add(_on_host(found), rows)

    def score(self) -> MemberScore:
        sums = {name: (_total(parts), self._rows[name]) for name, parts in self._totals.items()}
        return MemberScore(sums=sums, columns=self.predictions.columns())


def score_shard(
    task: Task,
    device: torch.device,
    batches: TorchBatches,
    call: ScoreCall,
    shard: Shard,
    models: Sequence[object],
) -> ScoreReport:
    """Test models on a shard, or let them predict it; see `Framework.score`."""
    if call.mode is ScoreMode.PREDICT and not task.has("predict"):
        raise UsageError(predict_missing(task))
    members = [
        _Member(task, model, params, device.type)  # type: ignore[arg-type]
        for model, params in zip(models, call.params, strict=True)
    ]
    with explained(device, _HINT), torch.no_grad():
        found = batches.in_order(shard, call.batch_size)
        for number, (batch, rows) in enumerate(found):
            for member in members:
                # Each member but the last gets tensors of its own: a task may change them.
                own = dict(batch) if member is members[-1] else _copied(batch)
                seed_everything(derive_seed("score", shard.number, number))
                if call.mode is ScoreMode.TEST:
                    member.test(own, rows)
                else:
                    member.predict(own, rows)
    return ScoreReport(rows=shard.rows, members=tuple(member.score() for member in members))


def predict_missing(task: Task) -> str:
    """What to do where a task cannot predict."""
    return (
        f"{type(task).__name__} must define predict(self, model, batch, params) to predict: return "
        'a tensor with one entry for each row, such as model(batch["x"]).argmax(1), or a dict of '
        "them by name."
    )


def _copied(batch: Batch) -> Batch:
    return {
        name: value.clone() if isinstance(value, Tensor) else _again(value)
        for name, value in batch.items()
    }


def _again(value: Any) -> Any:
    return list(value) if isinstance(value, list) else value


def _on_host(value: object) -> object:
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    if value.dtype in (torch.bfloat16, torch.float16):
        value = value.float()
    return value.numpy()


def _total(parts: list[float]) -> float:
    # fsum raises where infinities of both signs meet.
    return math.fsum(parts) if all(map(math.isfinite, parts)) else sum(parts)
