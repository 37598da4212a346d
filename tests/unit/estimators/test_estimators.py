"""Constructors: what they take, and what they say of what they do not."""

from __future__ import annotations

import functools

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.errors import UsageError
from cerebro.keras import KerasEstimator, SparkEstimator
from cerebro.torch import TorchEstimator


def make(**changes):
    model = nn.Linear(2, 1)
    return TorchEstimator(**{"model": model, "optimizer": "adam", "loss": "mse"} | changes)


@pytest.mark.parametrize("missing", ["model", "optimizer", "loss"])
def test_what_is_missing_is_named(missing):
    with pytest.raises(UsageError, match=rf"TorchEstimator needs .*: pass {missing}="):
        make(**{missing: None})


@pytest.mark.parametrize(
    ("argument", "hint"),
    [
        ("epochs", "num_epochs of the search class"),
        ("feature_cols", "feature_columns of the search class"),
        ("shuffle_buffer_size", "rows are shuffled in every visit"),
        ("run_id", "the search numbers its trials"),
    ],
)
@pytest.mark.parametrize("kind", [SparkEstimator, KerasEstimator, TorchEstimator])
def test_arguments_of_earlier_versions_are_refused_with_what_to_use(kind, argument, hint):
    with pytest.raises(UsageError, match=rf"{kind.__name__} takes no {argument}: {hint}"):
        kind(**{argument: 1})


@pytest.mark.parametrize("argument", ["callbacks", "custom_objects", "loss_weights"])
def test_arguments_that_only_keras_has_are_refused_with_what_to_use(argument):
    with pytest.raises(UsageError, match=rf"TorchEstimator takes no {argument}: "):
        make(**{argument: []})


def test_an_unknown_argument_is_named_with_those_there_are():
    with pytest.raises(UsageError, match=r"unknown argument of SparkEstimator 'metric'.*'metrics'"):
        SparkEstimator(metric=["acc"])


@pytest.mark.parametrize("size", [16, 16.0, np.int64(16), np.float64(16)], ids=repr)
def test_a_batch_size_may_be_any_whole_number(size):
    assert make(batch_size=size).batch_size == 16


@pytest.mark.parametrize("size", [0, -1, 1.5, "16 rows", True], ids=repr)
def test_a_batch_size_that_is_none_is_refused(size):
    with pytest.raises(UsageError, match=r"batch_size"):
        make(batch_size=size)


def test_a_single_metric_must_stand_in_a_list():
    with pytest.raises(UsageError, match=r"metrics must be a list, but got 'acc': pass \['acc'\]"):
        make(metrics="acc")


def test_optimizers_may_be_names_objects_or_functions():
    for optimizer in ("SGD", functools.partial(torch.optim.SGD, lr=0.1)):
        estimator = make(optimizer=optimizer)
        assert isinstance(estimator.make_optimizer(estimator.model), torch.optim.SGD)
    model = nn.Linear(1, 1)
    own = torch.optim.SGD(model.parameters(), lr=0.1)
    assert make(model=model, optimizer=own).make_optimizer(model) is own


def test_an_optimizer_of_another_model_is_refused():
    estimator = make(optimizer=torch.optim.SGD(nn.Linear(1, 1).parameters(), lr=0.1))
    with pytest.raises(UsageError, match=r"parameters of the estimator's model"):
        estimator.make_optimizer(estimator.model)


@pytest.mark.parametrize("optimizer", ["adm", 3], ids=repr)
def test_an_unknown_optimizer_is_refused(optimizer):
    estimator = make(optimizer=optimizer)
    with pytest.raises(UsageError, match=r"optimizer"):
        estimator.make_optimizer(estimator.model)


def test_unknown_losses_and_metrics_are_refused_with_those_there_are():
    with pytest.raises(UsageError, match=r"unknown loss 'msee'.*mse"):
        make(loss="msee")
    with pytest.raises(UsageError, match=r"unknown metric 'aucc'.*acc"):
        make(metrics=["aucc"])
    with pytest.raises(UsageError, match=r"unknown loss 'relu'"):
        make(loss="relu")
    with pytest.raises(UsageError, match=r"unknown metric 'softmax'"):
        make(metrics=["softmax"])


def test_labels_are_never_broadcast_against_outputs():
    recipe = make(loss="mse").recipe
    output, label = torch.tensor([[1.0], [3.0]]), torch.tensor([1.0, 3.0])
    assert recipe.loss([output], {"y": label}, ["y"]).item() == 0


def test_sample_weights_weigh_rows():
    recipe = make(loss="mse", sample_weight_col="w").recipe
    batch = {"y": torch.tensor([1.0, 1.0]), "w": torch.tensor([0.0, 2.0])}
    assert recipe.loss([torch.tensor([[5.0], [2.0]])], batch, ["y"]).item() == 1.0
    with pytest.raises(UsageError, match=r"needs a loss with a name"):
        make(loss=lambda output, label: output.mean(), sample_weight_col="w")


def test_accuracy_of_logits_is_judged_at_zero():
    batch = {"y": torch.tensor([1, 0])}
    outputs = [torch.tensor([[0.2], [-0.2]])]
    metrics = make(loss="bce_with_logits", metrics=["acc"]).recipe.metrics(outputs, batch, ["y"])
    assert metrics["acc"].item() == 1.0
