"""What the params of a recipe's trial say; no framework is needed to read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cerebro.task import RunFacts
from cerebro.types import Params
from cerebro.zoo.rates import RateRule, lr_at, make_rule


def section(params: Params, name: str) -> dict[str, Any]:
    """The params of one section of a recipe, by their names in it.

    >>> section({"optimizer.lr": 0.1, "model.name": "cnn"}, "optimizer")
    {'lr': 0.1}
    """
    head = f"{name}."
    # Trials that differ elsewhere may share what is built: only what is asked for counts as read.
    keys = dict.keys(params) if isinstance(params, dict) else params.keys()
    found = {key[len(head) :]: params[key] for key in keys if key.startswith(head)}
    return {key: value for key, value in found.items() if value is not None}


def global_batch_size(params: Mapping[str, Any], workers: int) -> int:
    """Rows that all workers of a trial take together in a step.

    >>> global_batch_size({"batch_size": 64}, workers=8)
    512
    """
    whole = params.get("global_batch_size")
    return int(workers * params["batch_size"] if whole is None else whole)


def rule_of(params: Params) -> RateRule:
    """What becomes of the learning rate.

    >>> rule_of({"optimizer.lr_scaling": "sqrt", "training.n_epochs": 5}).scaling
    <Scaling.SQRT: 'sqrt'>
    """
    training = section(params, "training")
    given = {
        "lr_scaling": params.get("optimizer.lr_scaling"),
        "lr_warmup_epochs": training.get("lr_warmup_epochs"),
        "lr_schedule": training.get("lr_schedule"),
        "momentum_correction": training.get("momentum_correction"),
    }
    known = {key: value for key, value in given.items() if value is not None}
    return make_rule(**known, n_epochs=training["n_epochs"])


def epoch_lr(params: Params, facts: RunFacts, epoch: int) -> float:
    """The learning rate of an epoch's last batch; epochs count from 0.

    >>> params = {"optimizer.lr": 0.1, "training.n_epochs": 5, "batch_size": 10}
    >>> epoch_lr(params, RunFacts(shard_rows=(100,), workers=4), 0)
    0.4
    """
    steps = facts.steps_per_epoch(global_batch_size(params, facts.workers))
    base: Any = params["optimizer.lr"]
    return lr_at((epoch + 1) * steps - 1, steps, facts.workers, base, rule_of(params)).lr
