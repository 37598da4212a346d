"""Names of losses, metrics and optimizers, checked before a model is trained."""

from __future__ import annotations

import pytest

from cerebro.errors import UsageError
from cerebro.train.keras.compiled import Compiled
from cerebro.train.keras.names import check_names

import keras  # isort: skip  # after cerebro, which chooses its backend


def compiled(**given):
    return Compiled(**{"model": None, "optimizer": "sgd", "loss": "mse", **given})


@pytest.mark.parametrize("name", ["adam", "AdamW", "RMSprop", "sgd"])
def test_optimizers_are_known_whatever_their_case(name):
    check_names(compiled(optimizer=name))


@pytest.mark.parametrize("name", ["mse", "MSE", "binary_crossentropy", "BinaryCrossentropy", "ce"])
def test_losses_are_known_as_functions_and_as_classes(name):
    check_names(compiled(loss=name))
    check_names(compiled(loss=[name, None]))


def test_what_keras_takes_for_several_outputs_is_taken():
    check_names(compiled(metrics={"a": ["acc", "AUC"], "b": keras.metrics.MeanSquaredError()}))
    check_names(compiled(metrics=[["accuracy"], [lambda y, p: p]]))
    check_names(compiled(loss={"class_name": "Huber", "config": {"delta": 2.0}}))


@pytest.mark.parametrize(
    "wrong",
    [{"loss": {"a": "mse", "b": "msee"}}, {"metrics": [["acc"], ["msee"]]}, {"optimizer": "msee"}],
    ids=["loss", "metrics", "optimizer"],
)
def test_a_name_that_keras_does_not_know_is_told_wherever_it_stands(wrong):
    with pytest.raises(UsageError, match=r"unknown \w+ 'msee'\. Known: .*is taken as well"):
        check_names(compiled(**wrong))


def test_a_metric_that_needs_arguments_is_told():
    with pytest.raises(UsageError, match=r"needs num_classes: give an object, keras\.metrics\.Mea"):
        check_names(compiled(metrics=["mean_io_u"]))


def test_an_optimizer_of_ones_own_may_have_a_name():
    class Mine(keras.optimizers.SGD):
        pass

    check_names(compiled(optimizer="Mine", custom_objects={"Mine": Mine}))
    with pytest.raises(UsageError, match="unknown optimizer 'Mine'"):
        check_names(compiled(optimizer="Mine"))
