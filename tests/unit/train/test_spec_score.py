"""A spec that tests and predicts: several models together as each alone."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from cerebro.errors import UsageError
from cerebro.train.model_file import ExportCall
from cerebro.train.score.calls import ScoreCall, ScoreMode
from tests.unit.train.spec_loop import PARAMS, Hops, LineSpec


class Signs(LineSpec):
    """Predicts the sign; changes what it is given, as a spec may."""

    def val_test(self, model_object, minibatch, hyperparams, device):
        found = super().val_test(model_object, minibatch, hyperparams, device)
        minibatch[0].zero_()
        return {**found, "rows": len(minibatch[1])}

    def predict(self, model_object, minibatch, hyperparams, device):
        x, ids = minibatch
        assert not model_object["net"].training
        assert not torch.is_grad_enabled()
        scores = model_object["net"](x)[:, 0]
        x.zero_()
        assert len(ids) == len(x)
        return (scores > 0).long(), torch.stack([1 - scores.sigmoid(), scores.sigmoid()], 1)


def score(hops, mode, models, batch_size=4):
    call = ScoreCall(mode=mode, params=(PARAMS,) * len(models), batch_size=batch_size)
    return hops.framework.score(call, hops.data.open_shard("val", 0), models)


def loaded(hops, *places):
    return [hops.framework.load(hops.params, hops.states[place]) for place in places]


def test_a_test_is_an_evaluation(data):
    hops = Hops(Signs(), data).run(2)
    report = score(hops, ScoreMode.TEST, loaded(hops, -1), batch_size=8)
    assert report.rows == 11
    assert report.members[0].sums == hops.evaluate().members[0].sums


@pytest.mark.parametrize("mode", ScoreMode)
def test_models_together_give_what_each_gives_alone(data, mode):
    hops = Hops(Signs(), data).run(3)
    models = loaded(hops, 0, 1, 2)
    together = score(hops, mode, models).members
    alone = [score(hops, mode, [model]).members[0] for model in models]
    assert [member.sums for member in together] == [member.sums for member in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.columns.keys() == other.columns.keys()
        for name in one.columns:
            np.testing.assert_array_equal(one.columns[name], other.columns[name])


def test_a_prediction_has_classes_and_probabilities_in_the_order_of_rows(data):
    hops = Hops(Signs(), data).run(2)
    (member,) = score(hops, ScoreMode.PREDICT, loaded(hops, -1)).members
    (model,) = loaded(hops, -1)
    x = torch.from_numpy(np.array(data.open_shard("val", 0).columns["x"]))
    with torch.no_grad():
        expected = model["net"](x)[:, 0]
    np.testing.assert_array_equal(member.columns["class"], (expected > 0).long().numpy())
    shares = member.columns["probability"]
    assert shares.shape == (11, 2)
    np.testing.assert_allclose(shares[:, 1], expected.sigmoid().numpy(), rtol=1e-5)


def test_lists_are_fine_as_predictions(data):
    class Lists(Signs):
        def predict(self, model_object, minibatch, hyperparams, device):
            classes, shares = super().predict(model_object, minibatch, hyperparams, device)
            return ["up" if each else "down" for each in classes], list(shares)

    hops = Hops(Lists(), data).run(1)
    (member,) = score(hops, ScoreMode.PREDICT, loaded(hops, -1)).members
    assert set(member.columns["class"]) <= {"up", "down"}
    assert member.columns["probability"].shape == (11, 2)


def test_a_spec_with_metrics_agg_gives_its_batches(data):
    class Aggregating(Signs):
        def metrics_agg(self, mode, hyperparams, metrics):
            return {}

    hops = Hops(Aggregating(), data).run(1)
    (member,) = score(hops, ScoreMode.TEST, loaded(hops, -1)).members
    assert member.sums == {}
    assert member.batches["rows"] == ([4.0, 4.0, 3.0], [4, 4, 3])


def test_values_that_are_not_finite_are_given_as_they_are(data):
    class Strange(Signs):
        def val_test(self, model_object, minibatch, hyperparams, device):
            return {"loss": math.nan, "high": math.inf}

    hops = Hops(Strange(), data).run(1)
    sums = score(hops, ScoreMode.TEST, loaded(hops, -1)).members[0].sums
    assert math.isnan(sums["loss"][0])
    assert sums["high"] == (math.inf, 11)


def test_a_spec_without_predict_is_told_what_to_write(data):
    hops = Hops(LineSpec(), data).run(1)
    with pytest.raises(UsageError, match=r"LineSpec must define predict.*\(classes, probabil"):
        score(hops, ScoreMode.PREDICT, loaded(hops, -1))


def test_modules_go_to_a_file_of_weights_and_come_back(data):
    hops = Hops(Signs(), data).run(2)
    (model,) = loaded(hops, -1)
    call = ExportCall(to="safetensors", columns=("x",), about={})
    content = hops.framework.export(call, model, None)
    again = hops.framework.load_file(hops.params, "model.safetensors", content)
    one, other = (score(hops, ScoreMode.TEST, [each]).members[0].sums for each in (model, again))
    assert one == other


def test_a_graph_is_made_of_one_module_alone(data):
    class Two(Signs):
        def create_model_components(self, hyperparams):
            return {**super().create_model_components(hyperparams), "other": torch.nn.Identity()}

    hops = Hops(Two(), data).run(1)
    call = ExportCall(to="torch-export", columns=("x",), about={})
    with pytest.raises(UsageError, match="one module, but Two has net, other: export to safet"):
        hops.framework.export(call, loaded(hops, -1)[0], data.open_shard("val", 0))
