"""A gang trains as one worker does."""

from __future__ import annotations

import itertools
import threading
import time

import pytest
import torch
from torch import nn

from cerebro.errors import UsageError
from cerebro.task import Task
from cerebro.train.gang import gradients
from cerebro.train.gang.group import Gang
from cerebro.train.visit import Diverged, Stacking
from tests.unit.train.bare import LineTask, allocate, make_call, run_visits, tensors_of
from tests.unit.train.ranks import DEADLINE_S, Ranks, connected

VISITS = 5
LATE_S = 0.5


@pytest.fixture(autouse=True, params=[1 << 20, 100, 1], ids=["together", "mixed", "one by one"])
def _large(request, monkeypatch):
    """Gradients of so many bytes travel by themselves."""
    monkeypatch.setattr(gradients, "_LARGE_BYTES", request.param)


class Net(nn.Module):
    """Two layers, a branch for rows that are rare, and a part that is never used."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(4, 16)
        self.outer = nn.Linear(16, 1)
        self.rare = nn.Linear(4, 1)
        self.unused = nn.Linear(2, 2)

    def forward(self, x):
        found = self.outer(torch.tanh(self.inner(x)))
        is_rare = x[:, :1] > 1.5
        return found + self.rare(x) * is_rare if is_rare.any() else found


class NetTask(Task):
    """What makes it hard to average right: momentum, decay, clipping, a scheduler for batches."""

    clip_grad_norm = 0.5
    scheduler_step = "batch"

    def model(self, params):
        return Net()

    def optimizer(self, model, params):
        optimizer = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=0.01),
            "adam": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
        }[params["optimizer"]](model.parameters())
        return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.8)

    def loss(self, model, batch, params):
        return ((model(batch["x"]) - batch["y"]) ** 2).mean()

    def metrics(self, model, batch, params):
        return {"error": (model(batch["x"]) - batch["y"]).abs().mean()}


class MicroTask(NetTask):
    micro_batch = 2


def first_state(task, data, params, batch_size):
    return run_alone(task, data, params, 1, batch_size)[0]


def run_alone(task, data, params, visits, batch_size):
    """State and losses of one worker."""
    framework = run_visits(task, data, 0, params).framework
    state, losses = None, []
    for visit in range(visits):
        call = make_call(visit, params=params, batch_size=batch_size)
        shard = data.open_shard("train", call.shard)
        state, report = framework.train(call, shard, state, allocate)
        losses = report.members[0].losses
    return state, losses


def assert_close(ours, theirs, rtol=2e-5):
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=rtol, atol=1e-6, msg=name)


@pytest.mark.parametrize(
    ("optimizer", "size", "batch_size"),
    [("sgd", 2, 8), ("sgd", 3, 7), ("sgd", 3, 2), ("adam", 2, 7), ("adam", 3, 8)],
)
def test_a_gang_gives_the_weights_of_one_worker_with_the_whole_batch(
    data, optimizer, size, batch_size
):
    params = {"optimizer": optimizer}
    state, losses = run_alone(NetTask(), data, params, VISITS, batch_size)
    with connected(size) as gangs:
        begin = first_state(NetTask(), data, params, batch_size)
        ranks = Ranks(NetTask, data, gangs, params, begin)
        ranks.run(VISITS - 1, batch_size=batch_size)
    assert_close(tensors_of(ranks.state), tensors_of(state))
    assert ranks.report.rows == 22
    assert ranks.report.members[0].losses == pytest.approx(losses, rel=1e-4)


def test_micro_batches_of_ranks_add_up_to_the_whole_batch(data):
    params = {"optimizer": "sgd"}
    state, _ = run_alone(NetTask(), data, params, 3, 8)
    begin = first_state(NetTask(), data, params, 8)
    with connected(2) as gangs:
        given = Ranks(MicroTask, data, gangs, params, begin).run(2)
    with connected(2) as gangs:
        asked = Ranks(NetTask, data, gangs, params, begin).run(2, micro_batch=4)
    assert_close(tensors_of(given.state), tensors_of(state))
    assert bytes(asked.state.buffer) == bytes(given.state.buffer)


def test_two_gangs_of_one_size_give_the_same_bytes_however_often_they_are_compared(data):
    params = {"optimizer": "adam"}
    begin = first_state(NetTask(), data, params, 8)
    found = []
    for check_every in (0, 1, 100):
        with connected(3, check_every) as gangs:
            found.append(bytes(Ranks(NetTask, data, gangs, params, begin).run(3).state.buffer))
    assert found[0] == found[1] == found[2]


def test_a_visit_of_the_leader_alone_is_that_of_one_worker(data):
    params = {"optimizer": "sgd"}
    begin = first_state(NetTask(), data, params, 8)
    with connected(2) as gangs:
        ranks = Ranks(NetTask, data, gangs, params, begin)
        alone = ranks.train(is_alone=True)[0][0]
    assert bytes(alone.buffer) == bytes(run_alone(NetTask(), data, params, 2, 8)[0].buffer)


@pytest.mark.parametrize("size", [2, 3])
def test_an_evaluation_gives_the_exact_means_of_all_rows(data, size):
    params = {"optimizer": "sgd"}
    chain = run_visits(NetTask(), data, 1, params)
    expected = chain.evaluate().members[0].sums
    with connected(size) as gangs:
        reports = Ranks(NetTask, data, gangs, params, chain.states[-1]).evaluate()
    for report in reports:
        assert report.rows == 11
        for name, (total, rows) in report.members[0].sums.items():
            assert (total, rows) == (pytest.approx(expected[name][0], rel=1e-6), 11)


class NormTask(LineTask):
    def model(self, params):
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))


def test_running_means_are_those_of_all_ranks_rows(data):
    # One batch, with as many rows for each rank as there are for one worker in the mean.
    begin = first_state(NormTask(), data, None, 22)
    expected = tensors_of(run_alone(NormTask(), data, None, 2, 22)[0])["model.0.running_mean"]
    with connected(2) as gangs:
        ranks = Ranks(NormTask, data, gangs, None, begin).run(1, batch_size=22)
    found = tensors_of(ranks.state)
    torch.testing.assert_close(found["model.0.running_mean"], expected, rtol=1e-5, atol=1e-6)
    assert found["model.0.num_batches_tracked"] == 2


def test_batch_norm_is_never_left_with_a_row_alone(data):
    # Batches of 10, 10 and 2 rows.
    begin = first_state(NormTask(), data, None, 10)
    with connected(3) as gangs:
        ranks = Ranks(NormTask, data, gangs, None, begin).run(1, batch_size=10)
    assert ranks.report.rows == 22


class MeteredTask(NetTask):
    """Tells of all that it is asked about."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        self.meter.add({"error": loss}, len(batch["x"]))
        return loss


def test_metrics_of_training_are_those_of_all_rows_however_often_ranks_are_compared(data):
    params = {"optimizer": "sgd"}
    framework = run_visits(MeteredTask(), data, 0, params).framework
    shards = [data.open_shard("train", make_call(visit).shard) for visit in range(2)]
    calls = [make_call(visit, params=params) for visit in range(2)]
    begin, _ = framework.train(calls[0], shards[0], None, allocate)
    _, report = framework.train(calls[1], shards[1], begin, allocate)
    expected = report.members[0].sums["error"]
    with connected(2, check_every=1) as gangs:
        ranks = Ranks(MeteredTask, data, gangs, params, begin).run(1)
    found = ranks.report.members[0].sums["error"]
    assert found == (pytest.approx(expected[0], rel=1e-5), expected[1])


class WideTask(NetTask):
    """Remembers the largest batch that it was asked about."""

    most = 0

    def loss(self, model, batch, params):
        type(self).most = max(self.most, len(batch["x"]))
        return super().loss(model, batch, params)


@pytest.mark.parametrize(("micro_batch", "expected"), [(None, 4), (4, 2)])
def test_ranks_evaluate_as_many_rows_at_a_time_as_they_train(data, micro_batch, expected):
    class OwnTask(WideTask):
        pass

    params = {"optimizer": "sgd"}
    begin = first_state(NetTask(), data, params, 8)
    with connected(2) as gangs:
        Ranks(OwnTask, data, gangs, params, begin).evaluate(micro_batch=micro_batch)
    assert OwnTask.most == expected


class BurstTask(LineTask):
    """Its loss is no number for a batch with a number above the limit."""

    def model(self, params):
        return nn.Linear(4, 1)

    def loss(self, model, batch, params):
        found = super().loss(model, batch, params)
        limit = params["limit"]
        return found * float("nan") if model.training and (batch["x"] > limit).any() else found


def test_all_ranks_see_a_divergence_at_the_same_step_and_go_on_together(data):
    begin = run_alone(BurstTask(), data, {"limit": 100.0}, 1, 8)[0]
    largest = float(data.open_shard("train", make_call(1).shard).columns["x"].max())
    with connected(3) as gangs:
        ranks = Ranks(BurstTask, data, gangs, {"limit": largest - 1e-3}, begin)
        errors = ranks.train()
        assert all(isinstance(error, Diverged) for error in errors)
        assert len({str(error) for error in errors}) == 1
        ranks.params = {"limit": 100.0}
        ranks.run(1)


class SparseTask(LineTask):
    def model(self, params):
        return nn.Sequential(nn.Embedding(4, 1, sparse=True))

    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def loss(self, model, batch, params):
        return model((batch["x"] > 0).long()).mean()


def test_sparse_gradients_are_refused_with_what_to_use(data):
    begin = first_state(SparseTask(), data, None, 8)
    with connected(2) as gangs:
        given = Ranks(SparseTask, data, gangs, None, begin).train()
    assert any(isinstance(g, UsageError) and "sparse=False" in str(g) for g in given)


def test_a_stack_is_refused(data):
    with connected(2) as gangs:
        given = Ranks(LineTask, data, gangs).train(stack=Stacking())
    assert all(isinstance(g, UsageError) and "one trial at a time" in str(g) for g in given)


class LateTask(LineTask):
    """Its second model takes its time, from when the other rank waits for it."""

    def __init__(self, numbers, is_awaited):
        self.numbers = numbers
        self.is_awaited = is_awaited

    def model(self, params):
        if next(self.numbers) == 1:
            assert self.is_awaited.wait(DEADLINE_S)
            time.sleep(LATE_S)
        model = nn.Linear(4, 1)
        nn.init.zeros_(model.weight)
        nn.init.zeros_(model.bias)
        return model


def test_waiting_for_a_late_rank_is_no_computing(data, monkeypatch):
    numbers, is_awaited, wait = itertools.count(), threading.Event(), Gang._wait

    class Awaited:
        """Something that a gang waits for, and that is there once it does."""

        wait = staticmethod(is_awaited.set)

    def waiting(gang):
        gang._pending.appendleft(Awaited())
        wait(gang)

    with connected(2) as gangs:
        monkeypatch.setattr(Gang, "_wait", waiting)
        ranks = Ranks(lambda: LateTask(numbers, is_awaited), data, gangs)
        reports = [report for _, report in ranks.train()]
    assert max(report.comm_s for report in reports) > LATE_S / 2
    assert min(report.compute_s for report in reports) >= 0
