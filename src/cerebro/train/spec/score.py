"""Test and predict with MiniBatchSpecs: several models see the minibatches of a shard together."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from cerebro.data import Shard
from cerebro.errors import UsageError
from cerebro.task import ParamDict
from cerebro.train.score.calls import MemberScore, ScoreCall, ScoreMode, ScoreReport
from cerebro.train.score.columns import Predictions
from cerebro.train.seeds import derive_seed
from cerebro.train.spec.batches import Minibatch, Minibatches
from cerebro.train.spec.build import Bundle
from cerebro.train.spec.step import SpecSteps, Tally
from cerebro.train.torch.build import seed_everything
from cerebro.train.torch.memory import explained
from cerebro.types import Params

_HINT = "Use a smaller batch_size, or fewer workers."
#: Columns of a prediction.
CLASS, PROBABILITY = "class", "probability"


class LoadedModules(dict[str, nn.Module]):
    """The trained modules of a spec by name; `model_object` has all that came with them."""

    def __init__(self, bundle: Bundle) -> None:
        super().__init__(bundle.modules_by_name())
        self.bundle = bundle

    @property
    def model_object(self) -> dict[str, Any]:
        return self.bundle.components


class _Member:
    """One model, and what it made of the minibatches so far."""

    def __init__(self, steps: SpecSteps, model: LoadedModules, params: Params) -> None:
        self._steps = steps
        self._model = model
        self._params = ParamDict(params)
        self._tally = Tally(steps.judge_name, "test_", is_strict=False)
        self._predictions = Predictions(f"{steps.name}.predict")

    def test(self, batch: Minibatch) -> None:
        metrics = self._steps.judge(self._model.model_object, batch, self._params)
        self._tally.add(metrics, batch.rows)

    def predict(self, batch: Minibatch) -> None:
        classes, shares = self._steps.predict(self._model.model_object, batch, self._params)
        columns = {CLASS: _on_host(classes), PROBABILITY: _on_host(shares)}
        self._predictions.add(columns, batch.rows)

    def score(self, *, aggregates: bool) -> MemberScore:
        columns = self._predictions.columns()
        if aggregates:
            return MemberScore(batches=self._tally.batches(), columns=columns)
        return MemberScore(sums=self._tally.sums(), columns=columns)


def score_minibatches(
    steps: SpecSteps,
    minibatches: Minibatches,
    device: torch.device,
    call: ScoreCall,
    shard: Shard,
    models: Sequence[object],
) -> ScoreReport:
    """Test models on a shard, or let them predict it; see `Framework.score`."""
    is_test = call.mode is ScoreMode.TEST
    if not is_test and not steps.spec.has("predict"):
        raise UsageError(
            f"{steps.name} must define predict(self, model_object, minibatch, hyperparams, device) "
            "to predict: return the pair (classes, probabilities)."
        )
    members = [
        _Member(steps, cast(LoadedModules, model), params)
        for model, params in zip(models, call.params, strict=True)
    ]
    size = min(call.batch_size, shard.rows)
    with explained(device, _HINT), torch.no_grad():
        for model in models:
            cast(LoadedModules, model).bundle.eval()
        found = minibatches.in_order(shard, size, has_labels=is_test)
        for number, batch in enumerate(found):
            for member in members:
                # Each but the last gets tensors of its own: a spec may change them.
                own = batch if member is members[-1] else batch.copy()
                seed_everything(derive_seed("score", shard.number, number))
                if is_test:
                    member.test(own)
                else:
                    member.predict(own)
    aggregates = is_test and steps.spec.has("metrics_agg")
    scores = tuple(member.score(aggregates=aggregates) for member in members)
    return ScoreReport(rows=shard.rows, members=scores)


def _on_host(value: object) -> object:
    """Tensors, and lists of them, as arrays."""
    if isinstance(value, list | tuple) and value and isinstance(value[0], Tensor):
        value = torch.stack([cast(Tensor, item) for item in value])
    if not isinstance(value, Tensor):
        return value
    value = value.detach().cpu()
    return (value.float() if value.dtype in (torch.bfloat16, torch.float16) else value).numpy()
