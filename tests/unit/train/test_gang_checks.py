"""Ranks that do not train one model are found out, with the rank, what is wrong, and where."""

from __future__ import annotations

import concurrent.futures
import itertools
import re

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import from_arrays
from cerebro.errors import ReplicaError
from cerebro.train.gang.group import GangBroken
from cerebro.train.gang.replicas import compare
from tests.unit.train.bare import LineTask, run_visits
from tests.unit.train.ranks import Ranks, connected


class PlainTask(LineTask):
    def model(self, params):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


class OwnStepTask(PlainTask):
    """Makes its own steps, inside of the loss."""

    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        if model.training:
            grads = torch.autograd.grad(loss, list(model.parameters()), retain_graph=True)
            with torch.no_grad():
                for param, grad in zip(model.parameters(), grads, strict=True):
                    param.data = param - 0.01 * grad
            loss = super().loss(model, batch, params)
        return loss


class BesideTask(PlainTask):
    """Trains a module that the model does not know of."""

    def __init__(self):
        self.head = nn.Linear(1, 1)
        nn.init.ones_(self.head.weight)
        nn.init.zeros_(self.head.bias)
        self.own = torch.optim.SGD(self.head.parameters(), lr=0.1)

    def loss(self, model, batch, params):
        if model.training:
            self.own.zero_grad()
            self._error(model, batch).backward(inputs=list(self.head.parameters()))
            self.own.step()
        return self._error(model, batch)

    def _error(self, model, batch):
        return ((self.head(model(batch["x"])) - batch["y"]) ** 2).mean()


class LabelTask(PlainTask):
    """Takes labels by their place in the batch, not by their row."""

    def loss(self, model, batch, params):
        rows = len(batch["x"])
        labels = torch.arange(rows, dtype=torch.float32)[:, None]
        return ((model(batch["x"]) - labels) ** 2).mean()


class SumTask(PlainTask):
    def loss(self, model, batch, params):
        return ((model(batch["x"]) - batch["y"]) ** 2).sum()


class UnseededTask(PlainTask):
    numbers = itertools.count()

    def model(self, params):
        model = super().model(params)
        with torch.no_grad():
            model[2].weight.fill_(float(next(self.numbers)))
        return model


class DroppingTask(PlainTask):
    def augment(self, batch, rng, params):
        return {**batch, "x": batch["x"][1:], "y": batch["y"][1:]}


class NormTask(PlainTask):
    """Its ranks' running means differ within a visit."""

    def model(self, params):
        return nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 1))


class BufferedTask(BesideTask):
    """Has a buffer that nothing changes."""

    def model(self, params):
        model = super().model(params)
        model.register_buffer("scale", torch.ones(1))
        return model


class NoisyTask(PlainTask):
    def loss(self, model, batch, params):
        return super().loss(model, batch, params) + torch.randn(()) * 0.1


def errors_of(task, data, begin=PlainTask, *, visits=1, check_every=2):
    state = run_visits(begin(), data, 1).states[-1] if begin is not None else None
    with connected(2, check_every) as gangs:
        ranks = Ranks(task, data, gangs, None, state)
        for _ in range(visits):
            given = ranks.train()
            errors = [each for each in given if isinstance(each, Exception)]
            if errors:
                # Who hears of it from the others ends with that.
                assert {type(each) for each in errors} <= {ReplicaError, GangBroken}
                assert ReplicaError in map(type, errors)
                return [each for each in errors if isinstance(each, ReplicaError)]
    return []


def test_a_task_that_makes_its_own_steps_is_found_out(data):
    errors = errors_of(OwnStepTask, data)
    assert re.search(
        r"after step 2 of a visit of t0000 to shard 1 model\.0\.weight of rank 1 differs .*"
        r"Leave backward\(\) and step\(\) to Cerebro",
        str(errors[0]),
    )
    assert len(errors) == 2


def test_a_drift_is_found_at_the_end_of_a_visit_at_the_latest(data):
    errors = errors_of(OwnStepTask, data, check_every=100)
    assert "after step 3, the last of a visit of t0000 to shard 1, model.0.weight" in str(errors[0])


class MomentumTask(PlainTask):
    """Its ranks have the same weights, but other momenta after the last step of a visit."""

    numbers = itertools.count()

    def optimizer(self, model, params):
        made, number = super().optimizer(model, params), next(self.numbers)
        steps = itertools.count(1)

        def spoil(optimizer, *_):
            if next(steps) == 3:
                optimizer.state[model[0].weight]["momentum_buffer"] += number

        made.register_step_post_hook(spoil)
        return made


def test_optimizers_that_drift_apart_are_found_out(data):
    errors = errors_of(MomentumTask, data, check_every=100)
    assert re.search(r"optimizer\.\S+momentum_buffer of rank 1 differs", str(errors[0]))
    assert len(errors) == 2


def test_labels_that_do_not_belong_to_their_rows_are_found_out(data):
    errors = errors_of(LabelTask, data)
    assert "at step 0 of a visit of t0000 to shard 1" in str(errors[0])
    assert "Labels must belong to their rows" in str(errors[0])
    assert "ranks 0 to 1" in str(errors[0])
    assert len(errors) == 2


def test_a_loss_that_is_no_mean_over_rows_is_found_out(data):
    assert "must be the mean of the losses of its rows" in str(errors_of(SumTask, data)[0])


def test_initial_weights_without_a_seed_are_found_out(data):
    errors = errors_of(UnseededTask, data, begin=None)
    assert "before the first step of t0000 model." in str(errors[0])
    assert "of rank 1 differs from that of rank 0" in str(errors[0])
    assert "seeded for each trial" in str(errors[0])


class UnevenTask(PlainTask):
    numbers = itertools.count(8)

    def model(self, params):
        width = next(self.numbers)
        return nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 1))


def test_initial_weights_of_other_shapes_are_found_out_without_checks_too(data):
    errors = errors_of(UnevenTask, data, begin=None, check_every=0)
    assert "must hold tensors of the same shapes, but before the first step" in str(errors[0])
    assert len(errors) == 2


class FilledTask(PlainTask):
    """Begins with the same number in all of its weights."""

    def __init__(self, number):
        self.number = number

    def model(self, params):
        model = super().model(params)
        for param in model.parameters():
            nn.init.constant_(param, self.number)
        return model


def trained_from(data, *numbers):
    """The weights of each rank after a visit that they begin with these numbers."""
    tasks = iter([FilledTask(number) for number in numbers])
    with connected(2, check_every=0) as gangs:
        given = Ranks(lambda: next(tasks), data, gangs).train()
    return [bytes(state.buffer) for state, _ in given]


def test_without_checks_all_ranks_begin_with_the_weights_of_rank_0(data):
    expected, _ = trained_from(data, 0.1, 0.1)
    assert trained_from(data, 0.1, 0.2) == [expected, expected]
    assert trained_from(data, 0.2, 0.1)[0] != expected


def test_augmentation_that_drops_rows_is_found_out(data):
    errors = errors_of(DroppingTask, data)
    assert re.search(r"column '[xy]' has 3 rows of 4 on rank [01], at step 0", str(errors[0]))


def test_a_loss_that_draws_numbers_is_no_fault(data):
    assert errors_of(NoisyTask, data, visits=2) == []


class CancellingTask(FilledTask):
    """Losses of rows that are large, and nothing together."""

    def loss(self, model, batch, params):
        return (batch["large"] + model(batch["x"])).mean()


def test_losses_that_cancel_are_no_fault(tmp_path):
    x = np.random.default_rng(0).normal(size=(22, 4)).astype(np.float32)
    large = 1e8 * (x[:, :1] - x[:, :1].mean())
    data = from_arrays(str(tmp_path), {"x": x, "large": large}, shards=1)
    with connected(2, 1) as gangs:
        ranks = Ranks(lambda: CancellingTask(0.1), data, gangs).run(1, batch_size=22)
    assert ranks.visits == 1


def test_running_means_of_ranks_are_no_fault(data):
    assert errors_of(NormTask, data, begin=NormTask, visits=2, check_every=1) == []


def test_checks_can_be_turned_off(data):
    assert errors_of(SumTask, data, visits=2, check_every=0) == []
    assert errors_of(OwnStepTask, data, check_every=0) == []


@pytest.mark.parametrize("task", [BesideTask, BufferedTask], ids=["plain", "buffered"])
def test_a_module_beside_the_model_is_found_out(data, task):
    errors = errors_of(task, data, begin=task)
    assert re.search(
        r"at step 2 of a visit of t0000 to shard 1 rank 1 has \S+ for 3 rows that have \S+ on ",
        str(errors[0]),
    )


def compare_all(*tensors, loose=()):
    """What each rank is told that holds these."""

    def ask(gang, own):
        try:
            return compare(gang, own, "then", "So.", loose)
        except ReplicaError as error:
            return str(error)

    with connected(len(tensors)) as gangs, concurrent.futures.ThreadPoolExecutor(3) as pool:
        return list(pool.map(ask, gangs, tensors))


def test_small_differences_of_several_tensors_do_not_make_up_for_each_other():
    ulp = torch.finfo(torch.float32).eps
    for ours, theirs in itertools.product(range(1, 6), repeat=2):
        one = {"a": torch.tensor(1 + ours * ulp), "b": torch.tensor(1.0)}
        other = {"a": torch.tensor(1.0), "b": torch.tensor(1 + theirs * ulp)}
        found = compare_all(one, other)
        assert "a of rank 1 differs" in found[0]
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "numbers",
    [
        torch.arange(16),
        torch.tensor([1.0, -1.0]).double(),
        torch.arange(7).byte(),
        torch.arange(20_000),
    ],
    ids=["places", "signs", "bytes", "many"],
)
def test_the_same_numbers_in_another_order_are_found_out(numbers):
    found = compare_all({"a": numbers}, {"a": numbers.flip(0)})
    assert "a of rank 1 differs" in found[0]


def test_all_bits_of_a_word_turned_round_are_found_out():
    one = torch.tensor([5])
    assert "a of rank 1 differs" in compare_all({"a": one}, {"a": ~one})[0]


def test_tensors_that_may_differ_are_named_and_must_be_there_on_all_ranks():
    one, other = torch.zeros(3), torch.ones(3)
    same = {"weight": one, "mean": one}
    assert compare_all(same, dict(same), loose=("mean",)) == [[], []]
    found = compare_all(same, {"weight": one, "mean": other}, loose=("mean",))
    assert found == [["mean"], ["mean"]]
    found = compare_all(same, {"weight": one}, loose=("mean",))
    assert "mean of rank 1 differs" in found[0]
    assert found[0] == found[1]
