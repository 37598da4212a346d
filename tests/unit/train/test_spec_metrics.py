"""Metrics of a spec: exact means over rows, or what the spec makes of its batches."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.errors import TrialError, UsageError
from cerebro.train.spec.step import Tally
from cerebro.train.spec.task import aggregate
from cerebro.train.visit import Diverged
from tests.unit.train.bare import make_call
from tests.unit.train.spec_loop import Hops, LineSpec


class Sizes(LineSpec):
    """Its metrics are known: the rows of each batch, and the mean of the labels."""

    def train(self, model_object, minibatch, hyperparams, device):
        loss = self.step(model_object, minibatch)
        x, y, _ = minibatch
        return {"loss": loss, "rows": len(x), "label": y.mean(), "half": np.float32(0.5)}

    def val_test(self, model_object, minibatch, hyperparams, device):
        x, y, _ = minibatch
        return {"loss": torch.tensor(1.0), "rows": len(x), "label": y.mean()}


def test_means_over_a_shard_are_exact_with_an_uneven_last_batch(data):
    hops = Hops(Sizes(), data).run(1)
    sums = hops.reports[0].members[0].sums
    # Batches of 8, 8 and 6: the mean over rows is not that over batches.
    assert sums["rows"] == (8 * 8 + 8 * 8 + 6 * 6, 22)
    labels = np.array(data.open_shard("train", 0).columns["y"], np.float64)
    assert sums["label"][0] / 22 == pytest.approx(labels.mean(), rel=1e-6)
    assert sums["half"] == (11.0, 22)
    judged = hops.evaluate().members[0].sums
    assert judged["rows"] == (8 * 8 + 3 * 3, 11)
    assert judged["loss"] == (11.0, 11)


def test_losses_are_those_of_the_steps_and_counted_over_the_trial(data):
    hops = Hops(Sizes(), data).run(2)
    members = [report.members[0] for report in hops.reports]
    assert [member.first_step for member in members] == [0, 3]
    assert [len(member.losses) for member in members] == [3, 3]
    total = math.fsum(a * b for a, b in zip(members[0].losses, (8, 8, 6), strict=True))
    assert members[0].sums["loss"][0] == pytest.approx(total, rel=1e-12)


def test_a_metric_may_be_left_out_where_it_has_no_value():
    tally = Tally("Spec.train", "train_")
    tally.add({"loss": 1.0, "auc": 0.5}, 8)
    tally.add({"loss": 2.0}, 8)
    tally.add({"loss": 4.0, "auc": 0.8}, 4)
    assert tally.sums() == {"loss": (40.0, 20), "auc": (pytest.approx(7.2), 12)}
    assert tally.losses() == (1.0, 2.0, 4.0)


def test_without_a_loss_no_losses_are_reported():
    tally = Tally("Spec.train", "train_")
    tally.add({"score": 1.0}, 8)
    assert tally.losses() == ()


@pytest.mark.parametrize("name", ["loss", "aux_loss"])
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_loss_that_is_not_finite_is_divergence_at_once(name, value):
    tally = Tally("Spec.train", "train_")
    tally.add({name: 1.0}, 8)
    with pytest.raises(Diverged, match=rf"train_{name} is {value} at step 1 of the visit"):
        tally.add({name: torch.tensor(value)}, 8)


def test_another_metric_that_is_not_finite_is_divergence_in_the_end():
    tally = Tally("Spec.val_test", "val_")
    tally.add({"auc": math.nan, "loss": 1.0}, 8)
    with pytest.raises(Diverged, match="val_auc is nan in a batch"):
        tally.sums()
    assert tally.batches()["loss"] == ([1.0], [8])


@pytest.mark.parametrize(
    "value",
    ["0.5", None, [1.0], torch.zeros(2), np.zeros(3), 1j, object()],
    ids=lambda value: type(value).__name__,
)
def test_a_metric_that_is_no_number_is_refused_by_name(value):
    with pytest.raises(UsageError, match=r"Spec\.train must give one number for 'score'"):
        Tally("Spec.train", "train_").add({"score": value}, 8)


def test_weights_that_are_not_finite_are_divergence(data):
    class Bursting(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            self.step(model_object, minibatch)
            with torch.no_grad():
                model_object["net"][0].weight[0, 0] = math.inf
            return {}

    with pytest.raises(Diverged, match=r"model\.net\.0\.weight is not finite after the visit"):
        Hops(Bursting(), data).run(1)


class Aggregating(Sizes):
    def metrics_agg(self, mode, hyperparams, metrics):
        self.calls = [*getattr(self, "calls", []), (mode, {k: list(v) for k, v in metrics.items()})]
        means = super().metrics_agg(mode, hyperparams, metrics)
        return {"loss": means["loss"], "batches": len(metrics["rows"]), "lr": hyperparams["lr"]}


def test_a_spec_with_metrics_agg_reports_batches_in_place_of_sums(data):
    hops = Hops(Aggregating(), data).run(1)
    member = hops.reports[0].members[0]
    assert member.sums == {}
    assert member.batches["rows"] == ([8.0, 8.0, 6.0], [8, 8, 6])
    assert member.batches["loss"] == (list(member.losses), [8, 8, 6])
    assert hops.evaluate().members[0].batches["rows"] == ([8.0, 3.0], [8, 3])


def test_the_names_of_aggregated_metrics_are_known_from_the_first_visit(data):
    hops = Hops(Aggregating(), data)
    call = make_call(params=hops.params)
    names = hops.framework.metric_names(call, data.open_shard("train", 0))
    assert names == ("loss", "batches", "lr")
    assert hops.run(1, probe=True).reports[0].train_names == ("loss", "batches", "lr")
    assert hops.run(1).reports[1].train_names == ()


def test_aggregate_gives_lists_in_order_and_takes_numbers():
    spec, batches = Aggregating(), {"loss": ([1.0, 4.0], [3, 1]), "rows": ([3.0, 1.0], [3, 1])}
    assert aggregate(spec, "val", {"lr": 0.1}, batches) == {"loss": 1.75, "batches": 2, "lr": 0.1}
    assert spec.calls == [("val", {"loss": [1.0, 4.0], "rows": [3.0, 1.0]})]


@pytest.mark.parametrize(
    ("returned", "error", "said"),
    [
        (None, UsageError, r"Odd\.metrics_agg must return a dict .* returned a NoneType"),
        ([("loss", 1.0)], UsageError, "returned a list"),
        ({1: 1.0}, UsageError, "must name its metrics with text, but one is 1"),
        ({"loss": "low"}, UsageError, r"Odd\.metrics_agg must give one number for 'loss'"),
        ({"loss": math.nan}, TrialError, "must return finite numbers, but train_loss is nan"),
    ],
)
def test_a_result_of_metrics_agg_that_is_no_dict_of_finite_numbers_is_refused(
    returned, error, said
):
    class Odd(LineSpec):
        def metrics_agg(self, mode, hyperparams, metrics):
            return returned

    with pytest.raises(error, match=said):
        aggregate(Odd(), "train", {}, {"loss": ([1.0], [1])})


def test_modules_are_in_the_mode_that_fits(data):
    class Watching(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            assert model_object["net"].training
            assert torch.is_grad_enabled()
            return super().train(model_object, minibatch, hyperparams, device)

        def val_test(self, model_object, minibatch, hyperparams, device):
            assert not any(module.training for module in model_object["net"].modules())
            assert not torch.is_grad_enabled()
            return super().val_test(model_object, minibatch, hyperparams, device)

    hops = Hops(Watching(), data).run(1)
    hops.evaluate()
    hops.run(1)
    assert isinstance(hops.framework.load(hops.params, hops.states[-1])["net"], nn.Module)
