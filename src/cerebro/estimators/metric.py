"""Which metric ranks the models of a search, and which way."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from cerebro.errors import UsageError
from cerebro.search.wording import show, unknown
from cerebro.types import Mode

_VAL, _TRAIN = "val_", "train_"
#: Names, or the last words of names such as `sales_mae`, of which less is better.
_FALLING = (
    *("loss", "error", "mse", "mae", "rmse", "mape", "msle", "rmsle", "rmspe", "logcosh", "hinge"),
    *("crossentropy", "cross_entropy", "nll", "perplexity", "divergence", "poisson", "deviance"),
)
#: The same, of which more is better.
_RISING = (
    *("acc", "accuracy", "auc", "precision", "recall", "f1", "f1_score", "fbeta", "fbeta_score"),
    *("r2", "r2_score", "iou", "mean_io_u", "dice", "sensitivity", "specificity", "bleu", "map"),
    *("cosine_similarity", "correlation", "positives", "negatives"),
)
#: Two names of one thing.
_ALIASES = {"acc": "accuracy", "accuracy": "acc"}


def ranked_by(
    name: object,
    mode: object = None,
    *,
    known: Collection[str] | None,
    has_validation: bool,
) -> tuple[str, str]:
    """The metric of a run, and its mode, for the name that a user gave.

    A name without `val_` or `train_` is that of validation, where there are rows for it. `known`
    are the metrics of the estimator; None where only training tells them.

    >>> ranked_by("acc", known=["loss", "accuracy"], has_validation=True)
    ('val_accuracy', 'max')
    >>> ranked_by("loss", known=["loss"], has_validation=False)
    ('train_loss', 'min')
    """
    if not isinstance(name, str):
        raise UsageError(
            f"evaluation_metric must be the name of one metric, such as 'loss', but got "
            f"{show(name)}."
        )
    prefix, base = _split(name)
    base = _existing(base, name, known)
    if prefix == _VAL and not has_validation:
        raise UsageError(
            f"evaluation_metric {name!r} needs validation rows, but there are none: give "
            "validation= a fraction or the name of a column, or rank by 'train_loss'."
        )
    prefix = prefix or (_VAL if has_validation else _TRAIN)
    return prefix + base, str(_mode(base, name, mode))


def known_names(metrics: object) -> list[str] | None:
    """What estimators with these metrics report; None where that is not known yet.

    >>> known_names(["acc"]), known_names({"out": ["acc"]})
    (['loss', 'acc'], None)
    """
    if metrics is None:
        return ["loss"]
    if not isinstance(metrics, Sequence) or isinstance(metrics, str):
        return None
    found = ["loss"]
    for metric in metrics:
        names = [metric] if isinstance(metric, str) else _names_of(metric)
        if not names:
            return None
        found += names
    return list(dict.fromkeys(found))


def _names_of(metric: object) -> list[str]:
    """What a metric may be called: Keras numbers objects without a name, in each model anew."""
    name, function = getattr(metric, "name", None), getattr(metric, "__name__", None)
    if isinstance(name, str):
        return [re.sub(r"_\d+$", "", name), name]
    return [function] if isinstance(function, str) else []


def _split(name: str) -> tuple[str, str]:
    for prefix in (_VAL, _TRAIN):
        if name.startswith(prefix):
            return prefix, name.removeprefix(prefix)
    return "", name


def _existing(base: str, name: str, known: Collection[str] | None) -> str:
    """The name as the estimator has it."""
    if known is None or base in known:
        return base
    alias = _ALIASES.get(base, base)
    if alias in known:
        return alias
    raise UsageError(
        f"{unknown('evaluation_metric', name, known)} An estimator reports its loss and what is in "
        "metrics=[...]."
    )


def _mode(base: str, name: str, mode: object) -> Mode:
    if mode is not None:
        if mode not in tuple(Mode):
            raise UsageError(f"mode must be one of {', '.join(Mode)}, but got {show(mode)}.")
        return Mode(str(mode))
    for words, found in ((_FALLING, Mode.MIN), (_RISING, Mode.MAX)):
        if re.search(rf"(^|_)({'|'.join(words)})(_\d+)?$", base):
            return found
    raise UsageError(
        f"whether more or less of {name!r} is better must be known, but its name does not tell: "
        "pass mode='max' or mode='min'."
    )
