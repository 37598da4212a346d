"""What came out of the training, in sentences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from cerebro.bench.cases import gather
from cerebro.bench.measurement import Measurement
from cerebro.bench.results import tell_results
from cerebro.bench.sweep import Rule, Setting
from cerebro.types import Mode
from tests.unit.bench.made import measured

ONE = Setting(batch=64)
THREE = Setting(nodes=3, batch=64)


def result(*runs: Measurement) -> str:
    (line,) = tell_results(gather(runs))
    return line


def test_fewer_steps_explain_a_lower_result() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    line = result(measured(ONE, best=0.88), measured(each, steps=34, best=0.75))
    assert line.endswith(
        "reached a lower val_accuracy than 1 node: 0.75 against 0.88, for it made 34 steps instead "
        "of 100 over the same rows."
    )


def test_a_higher_result_is_called_higher_and_not_explained_by_fewer_steps() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    line = result(measured(ONE, best=0.55), measured(each, steps=34, best=0.78))
    assert line.endswith("reached a higher val_accuracy than 1 node: 0.78 against 0.55.")


def test_a_lower_loss_needs_no_excuse() -> None:
    changes: dict[str, Any] = {"metric": "val_loss", "mode": Mode.MIN}
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    before = replace(measured(ONE, best=0.9), **changes)
    after = replace(measured(each, steps=34, best=0.6), **changes)
    line = result(before, after)
    assert "a lower val_loss than 1 node" in line
    assert "steps" not in line


@pytest.mark.parametrize(
    ("rows", "said"), [(1000, "as good as"), (100_000, "lower"), (None, "low")]
)
def test_few_validation_rows_tell_little(rows: int | None, said: str) -> None:
    line = result(
        measured(ONE, best=0.919, valid_rows=rows), measured(THREE, best=0.906, valid_rows=rows)
    )
    assert said in line


def test_the_same_steps_explain_a_result_by_the_order_of_sums() -> None:
    runs = [measured(s, best=b, valid_rows=10_000) for s, b in ((ONE, 0.914), (THREE, 0.887))]
    assert result(*runs).endswith(
        "0.887 against 0.914, after the same steps on the same rows, with sums in another order, "
        "which training magnifies."
    )


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        (THREE, {"is_rate_scaled": True}),
        (Setting(nodes=3, batch=64, rule=Rule.RANK), {}),
        (Setting(nodes=3), {}),
    ],
    ids=["rates differ", "rows differ", "batches are not known"],
)
def test_other_trainings_are_not_explained_by_the_order_of_sums(
    setting: Setting, changes: dict[str, Any]
) -> None:
    one = replace(setting, nodes=1, rule=Rule.GLOBAL)
    line = result(measured(one, best=0.9), measured(setting, best=0.8, **changes))
    assert line.endswith(": 0.8 against 0.9.")


def test_two_uncertain_results_are_further_apart_than_one_from_the_truth() -> None:
    # Of 10,000 rows one is uncertain by 0.006: both, by 0.0085.
    runs = [measured(s, best=b, valid_rows=10_000) for s, b in ((ONE, 0.9), (THREE, 0.892))]
    assert "as good as" in result(*runs)


LN_10 = (2.3048, 2.3025, 2.3023)


def test_an_accuracy_that_jumps_while_the_loss_stays_was_not_learned() -> None:
    jumps: dict[str, Any] = {"best": 0.1135, "rise": (0.858, 0.858, 1.0), "losses": LN_10}
    each = Setting(nodes=2, batch=64, rule=Rule.RANK)
    fewer = measured(each, best=0.0986, rise=(0.97, 1, 0.99), losses=LN_10, steps=50)
    line = result(measured(ONE, valid_rows=10_000, **jumps), replace(fewer, valid_rows=10_000))
    assert line.startswith("Hardly anything was learned by 2 settings with batches of 64")
    assert "val_accuracy is 0.0986 to 0.114, but the loss hardly moved" in line


def test_a_good_accuracy_was_learned_though_its_loss_stays() -> None:
    good: dict[str, Any] = {"best": 0.95, "rise": (0.9, 0.95, 1.0), "losses": (0.2, 0.199, 0.198)}
    assert "as good as that of 1 node" in result(measured(ONE, **good), measured(THREE, **good))


def test_a_loss_that_grows_is_no_lack_of_learning() -> None:
    worse: dict[str, Any] = {"best": 0.45, "rise": (0.8, 0.9, 1.0), "losses": (1.6, 1.7, 2.4)}
    assert "as good as that of 1 node" in result(measured(ONE, **worse), measured(THREE, **worse))


def test_one_that_has_learned_nothing_cannot_be_compared_with_one_that_is_hardly_better() -> None:
    begins = measured(ONE, best=0.19, losses=(2.3, 2.2, 2.0))
    line = result(begins, measured(THREE, best=0.1, steps=33, losses=LN_10))
    assert line == (
        "It is too early to tell what 2 settings with batches of 64 learned in so few epochs (3): "
        "val_accuracy is still as low as 0.1 to 0.19."
    )


def test_one_epoch_of_a_low_accuracy_is_too_early_to_tell() -> None:
    runs = [measured(s, best=b, rise=(1.0,)) for s, b in ((ONE, 0.11), (THREE, 0.09))]
    assert result(*runs).startswith("It is too early to tell")


def test_one_that_has_learned_nothing_is_worse_than_one_that_has() -> None:
    each = Setting(nodes=3, batch=64, rule=Rule.RANK)
    flat = measured(each, best=0.1, steps=33, losses=LN_10)
    assert "a lower val_accuracy than 1 node: 0.1 against 0.6, for it made 33 steps" in result(
        measured(ONE, best=0.6, losses=(2.0, 1.7, 1.2)), flat
    )


def test_a_metric_that_is_no_accuracy_is_judged_by_itself_alone() -> None:
    rising: dict[str, Any] = {"metric": "val_auc", "rise": (0.7, 0.9, 1.0), "losses": LN_10}
    assert "as good as that of 1 node" in result(measured(ONE, **rising), measured(THREE, **rising))


def test_where_nothing_was_learned_nobody_is_praised() -> None:
    flat: dict[str, Any] = {"best": 0.113, "rise": (1.0, 0.99, 1.0), "valid_rows": 1000}
    line = result(measured(ONE, **flat), measured(THREE, **flat))
    assert line.startswith("Nothing was learned by 2 settings with batches of 64 in so few epochs")
    assert line.endswith("which says nothing about convergence.")


def test_a_result_that_was_good_at_once_was_learned() -> None:
    flat: dict[str, Any] = {"best": 0.98, "rise": (1.0, 1.0, 1.0), "valid_rows": 1000}
    assert "as good as that of 1 node" in result(measured(ONE, **flat), measured(THREE, **flat))
