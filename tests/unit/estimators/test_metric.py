from __future__ import annotations

import pytest

from cerebro.errors import UsageError
from cerebro.estimators.metric import known_names, ranked_by


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("loss", ("val_loss", "min")),
        ("acc", ("val_acc", "max")),
        ("val_acc", ("val_acc", "max")),
        ("train_loss", ("train_loss", "min")),
        ("out_1_auc", ("val_out_1_auc", "max")),
        ("exp_rmspe", ("val_exp_rmspe", "min")),
        ("auc_2", ("val_auc_2", "max")),
    ],
)
def test_the_direction_of_a_well_known_metric_is_known(name, expected):
    assert ranked_by(name, known=None, has_validation=True) == expected


def test_accuracy_is_found_under_either_of_its_names():
    found = ranked_by("accuracy", known=["loss", "acc"], has_validation=True)
    assert found == ("val_acc", "max")


def test_a_metric_that_the_estimator_lacks_is_refused_with_those_it_has():
    with pytest.raises(UsageError, match=r"unknown evaluation_metric 'auc'. Known: loss, acc"):
        ranked_by("auc", known=["loss", "acc"], has_validation=True)


def test_a_metric_of_unknown_direction_needs_a_mode():
    with pytest.raises(UsageError, match=r"pass mode='max' or mode='min'"):
        ranked_by("profit", known=["loss", "profit"], has_validation=True)
    found = ranked_by("profit", "max", known=["loss", "profit"], has_validation=True)
    assert found == ("val_profit", "max")


def test_without_validation_rows_the_training_loss_ranks():
    assert ranked_by("loss", known=["loss"], has_validation=False) == ("train_loss", "min")
    with pytest.raises(UsageError, match=r"needs validation rows"):
        ranked_by("val_loss", known=["loss"], has_validation=False)


@pytest.mark.parametrize("name", [None, ["loss"], 3], ids=["none", "list", "number"])
def test_a_metric_that_is_no_name_is_refused(name):
    with pytest.raises(UsageError, match=r"must be the name of one metric"):
        ranked_by(name, known=["loss"], has_validation=True)


def test_a_mode_that_is_none_is_refused():
    with pytest.raises(UsageError, match=r"mode must be one of max, min"):
        ranked_by("loss", "best", known=["loss"], has_validation=True)


def test_metrics_are_known_by_name_function_or_object():
    class Object:
        name = "auc"

    def rmspe(output, label):
        return 0.0

    assert known_names(["acc", rmspe, Object()]) == ["loss", "acc", "rmspe", "auc"]
    assert known_names([["acc"], ["mae"]]) is None


def test_an_object_that_keras_has_numbered_is_known_without_its_number():
    class Object:
        name = "auc_3"

    assert ranked_by("auc", known=known_names([Object()]), has_validation=True)[0] == "val_auc"
