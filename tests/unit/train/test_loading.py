"""What the loop of a visit waits for its batches is told apart from what it computes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from torch import nn

from cerebro import Experiment
from cerebro.train.loading import Loading
from cerebro.train.visit import Stacking
from tests.experiments import fast_folder
from tests.unit.train.bare import Chain, LineTask, allocate, make_call, run_visits
from tests.unit.train.ranks import Ranks, connected
from tests.unit.train.slow import CLOCK, LITTLE_S, SLOW_S, computed, loaded, slow_shard
from tests.unit.train.spec_loop import Hops, LineSpec

pytestmark = pytest.mark.usefixtures("clock")
#: Batches of a training visit, and of an evaluation.
BATCHES, EVALUATED = 3, 2


class ZeroTask(LineTask):
    """Draws nothing: ranks are threads here, with generators in common."""

    def model(self, params):
        model = nn.Linear(4, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model


class SlowDecode(ZeroTask):
    def decode(self, batch):
        CLOCK.pass_by()
        return batch


class SlowAugment(ZeroTask):
    def augment(self, batch, rng, params):
        CLOCK.pass_by()
        return batch


class SlowLoss(ZeroTask):
    def loss(self, model, batch, params):
        CLOCK.pass_by()
        return super().loss(model, batch, params)


@pytest.mark.parametrize("task", [SlowDecode, SlowAugment])
def test_slow_batches_of_training_are_loading(data, task):
    (report,) = run_visits(task(), data, 1).reports
    assert loaded(report, BATCHES)
    assert report.data_s + report.hop_s < LITTLE_S


def test_slow_rows_are_loading(data):
    framework = Chain(LineTask(), data).framework
    _, report = framework.train(make_call(), slow_shard(data), None, allocate)
    assert loaded(report, BATCHES)


def test_a_slow_loss_is_computing(data):
    chain = run_visits(SlowLoss(), data, 1)
    assert computed(chain.reports[0], BATCHES)
    assert computed(chain.evaluate(), EVALUATED)


def test_slow_batches_of_an_evaluation_are_loading(data):
    assert loaded(run_visits(SlowDecode(), data, 1).evaluate(), EVALUATED)


@pytest.mark.parametrize("task", [SlowDecode, SlowAugment])
def test_every_rank_of_a_gang_counts_its_own_loading(data, task):
    with connected(2, check_every=0) as gangs:
        reports = [report for _, report in Ranks(task, data, gangs).train()]
    assert all(loaded(report, BATCHES) for report in reports)


def test_a_slow_loss_is_computing_in_a_gang(data):
    with connected(2, check_every=0) as gangs:
        ranks = Ranks(SlowLoss, data, gangs)
        reports = [report for _, report in ranks.train()]
        scored = ranks.evaluate()
    assert all(computed(report, BATCHES) for report in reports)
    assert all(computed(report, EVALUATED) for report in scored)


def test_checks_of_a_gang_are_no_loading(data):
    with connected(2, check_every=1) as gangs:
        reports = [report for _, report in Ranks(SlowLoss, data, gangs).train()]
    assert max(report.load_s for report in reports) < LITTLE_S


def test_a_stack_counts_the_loading_of_all_its_members(data):
    call = replace(make_call(stack=Stacking()), trials=(0, 1), params=({}, {}))
    framework, slow = Chain(LineTask(), data).framework, slow_shard(data)
    state, report = framework.train(call, slow, None, allocate)
    assert loaded(report, BATCHES)
    assert loaded(framework.evaluate(replace(call, split="val"), slow, state), BATCHES)


def test_batches_of_a_spec_are_loading_and_its_step_is_computing(data):
    class Slow(LineSpec):
        def step(self, model_object, minibatch):
            CLOCK.pass_by()
            return super().step(model_object, minibatch)

    assert computed(Hops(Slow(), data).run(1).reports[0], BATCHES)
    hops, shard = Hops(LineSpec(), data), slow_shard(data)
    call = make_call(params=hops.params)
    state, report = hops.framework.train(call, shard, None, allocate)
    assert loaded(report, BATCHES)
    assert loaded(hops.framework.evaluate(replace(call, split="val"), shard, state), BATCHES)


def test_the_loop_never_waits_longer_than_it_takes():
    loading = Loading()
    loading.call(CLOCK.pass_by)
    assert loading.within(2 * SLOW_S) == pytest.approx(SLOW_S, abs=LITTLE_S)
    assert loading.within(1.0) == 1.0


@pytest.mark.parametrize(("task", "slow"), [(SlowDecode, "data_ms"), (SlowLoss, "compute_ms")])
def test_a_trace_tells_data_from_compute(data, task, slow):
    with fast_folder() as store:
        run = Experiment(name="run", data=data.path, store=store, backend="inline", workers=1)
        fit = {"num_epochs": 1, "batch_size": 8, "metric": "val_loss", "mode": "min"}
        result = run.run_fit(task(), {"lr": [0.1]}, stack=False, progress=False, **fit)
        events = json.loads((store / "run" / "trace.json").read_text())["traceEvents"]
    visits = [event["args"] for event in events if event["ph"] == "X"]
    assert {visit["phase"] for visit in visits} == {"train", "eval"}
    other = {"data_ms": "compute_ms", "compute_ms": "data_ms"}[slow]
    assert all(visit[slow] > 1e3 * SLOW_S for visit in visits)
    assert all(0 <= visit[other] < 1e3 * LITTLE_S for visit in visits)
    spent = {name: result.summary[f"{name}_s"] for name in ("compute", "load", "capacity")}
    assert result.summary["efficiency"] == pytest.approx(
        (spent["compute"] + spent["load"]) / spent["capacity"]
    )
    assert result.summary["efficiency"] > 0.5
