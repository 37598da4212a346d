"""A stack trains its members as the plain loop would: over a zoo of architectures and rules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from cerebro.storage.stacked import take_member
from cerebro.task import ParamDict
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Stacking, State, VisitCall
from cerebro.types import Split
from tests import zoo

MEMBERS = 3
TOLERANCE = 1e-4


def both(task: zoo.Zoo, shape: Any, **given: Any) -> tuple[zoo.Trained, zoo.Trained]:
    params = zoo.make_params(MEMBERS)
    plain = zoo.train_plain(TorchFramework(task, device="cpu"), shape, params, **given)
    stacked = zoo.train_stacked(TorchFramework(task, device="cpu"), shape, params, **given)
    return plain, stacked


def assert_alike(plain: zoo.Trained, stacked: zoo.Trained) -> None:
    for member in range(MEMBERS):
        assert zoo.difference(plain.tensors[member], stacked.tensors[member]) < TOLERANCE
        for first, second in zip(plain.reports[member], stacked.reports[member], strict=True):
            assert second.diverged is None
            assert second.first_step == first.first_step
            assert second.losses == pytest.approx(first.losses, rel=TOLERANCE, abs=1e-5)


@pytest.mark.parametrize("name", zoo.ARCHITECTURES)
def test_members_get_the_weights_they_would_get_alone(name: str) -> None:
    make, shape = zoo.ARCHITECTURES[name]
    assert_alike(*both(zoo.Zoo(make), shape))


def _with(scheduler: Any) -> Any:
    def make(model: nn.Module, params: Any) -> Any:
        optimizer = zoo.sgd(model, params)
        return optimizer, scheduler(optimizer)

    return make


def _groups(model: Any, params: Any) -> Any:
    return torch.optim.AdamW(
        [
            {"params": [model[0].weight], "lr": params["lr"] / 10, "weight_decay": 0.1},
            {"params": [model[2].weight, model[2].bias], "lr": params["lr"] / 100},
        ]
    )


_OPTIM = torch.optim
OPTIMIZERS = {
    "sgd": lambda m, p: _OPTIM.SGD(m.parameters(), lr=p["lr"]),
    "momentum_of_some": lambda m, p: _OPTIM.SGD(m.parameters(), lr=0.1, momentum=0.5 * p["size"]),
    "nesterov": lambda m, p: _OPTIM.SGD(m.parameters(), lr=p["lr"], momentum=0.9, nesterov=True),
    "maximize": lambda m, p: _OPTIM.SGD(m.parameters(), lr=p["lr"] / 50, maximize=True),
    "adam": lambda m, p: _OPTIM.Adam(m.parameters(), lr=p["lr"] / 5, betas=(p["momentum"], 0.95)),
    "adam_decay": lambda m, p: _OPTIM.Adam(m.parameters(), lr=0.01, weight_decay=p["decay"]),
    "adamw": lambda m, p: _OPTIM.AdamW(m.parameters(), lr=p["lr"] / 5, weight_decay=p["decay"]),
    "rmsprop": lambda m, p: _OPTIM.RMSprop(m.parameters(), lr=p["lr"] / 10),
    "rmsprop_all": lambda m, p: _OPTIM.RMSprop(
        m.parameters(), lr=p["lr"] / 20, momentum=p["momentum"], centered=True, weight_decay=0.01
    ),
    "adagrad": lambda m, p: _OPTIM.Adagrad(
        m.parameters(), lr=p["lr"], lr_decay=0.1, initial_accumulator_value=0.1
    ),
    "some_parameters": _groups,
    "step_lr": _with(lambda o: _OPTIM.lr_scheduler.StepLR(o, 1, 0.5)),
    "plateau": _with(lambda o: _OPTIM.lr_scheduler.ReduceLROnPlateau(o, patience=0)),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers_and_schedulers_keep_what_pytorchs_keep(name: str) -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(zoo.Zoo(make, OPTIMIZERS[name]), shape)
    assert_alike(plain, stacked)
    for member in range(MEMBERS):
        for slot, value in plain.tensors[member].items():
            torch.testing.assert_close(
                stacked.tensors[member][slot], value, rtol=1e-3, atol=1e-5, msg=slot
            )
        assert stacked.metas[member].keys() == plain.metas[member].keys()
        assert stacked.metas[member]["groups"] == plain.metas[member]["groups"]


def test_schedules_by_batch_and_clipping() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    optimizer = _with(lambda o: _OPTIM.lr_scheduler.CosineAnnealingLR(o, 60))
    task = zoo.Zoo(make, optimizer, scheduler_step="batch", clip_grad_norm=0.5)
    plain, stacked = both(task, shape)
    assert_alike(plain, stacked)
    assert stacked.metas[1]["scheduler"] == plain.metas[1]["scheduler"]


def test_one_order_for_all() -> None:
    make, shape = zoo.ARCHITECTURES["dropout"]
    assert_alike(*both(zoo.Zoo(make), shape, same_order=True))


def test_bf16_stays_close() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(zoo.Zoo(make, amp="bf16"), shape)
    for member in range(MEMBERS):
        assert zoo.difference(plain.tensors[member], stacked.tensors[member]) < 2e-2


@pytest.mark.parametrize("name", ["mlp", "batch_norm", "dropout", "cnn_group_norm", "lstm"])
def test_evaluations_agree(name: str) -> None:
    make, shape = zoo.ARCHITECTURES[name]
    task, params = zoo.Zoo(make), zoo.make_params(MEMBERS)
    plain, stacked = both(task, shape)
    framework = TorchFramework(task, device="cpu")
    shard = zoo.make_shard(shape, number=5)
    trials = tuple(range(MEMBERS))
    call = zoo.visit(trials, params, 0, split=Split.VAL, stack=Stacking())
    report = framework.evaluate(call, shard, stacked.states[0])
    for trial in trials:
        alone = _alone(call, trial, params[trial])
        expected = framework.evaluate(alone, shard, plain.states[trial]).members[0].sums
        found = report.members[trial].sums
        assert found.keys() == expected.keys() == {"loss", "accuracy"}
        for metric, (total, rows) in expected.items():
            assert found[metric][1] == rows
            assert found[metric][0] == pytest.approx(total, rel=TOLERANCE, abs=1e-3)


@pytest.mark.parametrize("same_order", [False, True])
def test_what_a_task_tells_its_meter_is_known_of_each_member(same_order: bool) -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(zoo.Metered(make), shape, same_order=same_order)
    assert_alike(plain, stacked)
    for own, expected in zip(stacked.reports, plain.reports, strict=True):
        for found, alone in zip(own, expected, strict=True):
            assert found.sums.keys() == {"loss", "accuracy"}
            assert found.sums["accuracy"] == pytest.approx(alone.sums["accuracy"], abs=1e-3)
    assert len({own[0].sums["accuracy"] for own in stacked.reports}) > 1


class Counting(zoo.Metered):
    """Its metric is a number of Python's, which no stack can have."""

    def told(self, logits, batch, params):
        return {"right": sum((logits.argmax(1) == batch["y"]).tolist())}


def test_a_metric_that_no_stack_can_have_is_left_out() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(Counting(make), shape)
    assert_alike(plain, stacked)
    assert plain.reports[0][0].sums.keys() == {"loss", "right"}
    assert stacked.reports[0][0].sums.keys() == {"loss"}


def test_numbers_of_the_moment_at_which_a_step_is_traced_are_left_out() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(zoo.Momentary(make), shape)
    assert_alike(plain, stacked)
    assert plain.reports[0][0].sums.keys() == {"loss", "accuracy", "rate", "tensor"}
    assert {tuple(one.sums) for own in stacked.reports for one in own} == {("loss", "accuracy")}


class Rated(zoo.Metered):
    """Its metric needs a plain number, which differs from member to member."""

    def told(self, logits, batch, params):
        return {"rate": float(params["lr"])}


class Whole(zoo.Metered):
    """It tells nothing of the last batch, which is smaller."""

    def told(self, logits, batch, params):
        return super().told(logits, batch, params) if len(logits) == zoo.BATCH else {}


@pytest.mark.parametrize("kind", [Rated, Whole])
def test_what_not_all_steps_or_members_tell_keeps_no_stack_from_training(kind: Any) -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    plain, stacked = both(kind(make), shape)
    assert_alike(plain, stacked)
    assert {tuple(one.sums) for own in stacked.reports for one in own} == {("loss",)}


class Scaled(zoo.Metered):
    """Its metric is a tensor, but needs a plain number, too."""

    def told(self, logits, batch, params):
        return {"scaled": logits.detach().mean() * float(params["weight"])}


def test_what_was_trained_before_changes_neither_weights_nor_metrics() -> None:
    """What is a plain number in one step, as its members agree in it, differs in the next stack."""
    make, shape = zoo.ARCHITECTURES["mlp"]
    own = {"lr": 0.05, "momentum": 0.5, "decay": 0.0, "size": 0}
    alike = [ParamDict(own, weight=1.0), ParamDict(own, weight=1.0)]
    mixed = [ParamDict(own, weight=1.0), ParamDict(own, weight=3.0)]
    expected = zoo.train_stacked(TorchFramework(Scaled(make), device="cpu"), shape, mixed)
    framework = TorchFramework(Scaled(make), device="cpu")
    for _ in range(2):
        before = zoo.train_stacked(framework, shape, alike)
        found = zoo.train_stacked(framework, shape, mixed)
        assert before.reports[0][0].sums.keys() == {"loss", "scaled"}
        assert [set(first.sums) for first, *_ in found.reports] == [{"loss"}, {"loss"}]
        for tensors, others in zip(found.tensors, expected.tensors, strict=True):
            assert zoo.difference(tensors, others) == 0.0


class Rooted(zoo.Metered):
    """Its metric is no number for those with a small weight."""

    def told(self, logits, batch, params):
        return {"root": (params["weight"] - logits.detach().square().mean() * 0 - 1.05).sqrt()}


def test_a_metric_that_is_no_number_ends_its_member_alone() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    task, params = Rooted(make), zoo.make_params(MEMBERS)
    stacked = zoo.train_stacked(TorchFramework(task, device="cpu"), shape, params)
    assert [own[0].diverged for own in stacked.reports] == ["train_root is nan", None, None]
    assert stacked.reports[0][0].sums == {}


class Odd(nn.Module):
    """A gradient that lies otherwise in memory than its parameter; a weight of no dimension."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(16, 8) / 4)
        self.second = nn.Parameter(torch.randn(zoo.CLASSES, 8) / 3)
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * torch.einsum("bi,io,co->bc", x, self.first, self.second)


@pytest.mark.parametrize("name", ["sgd", "adam", "adamw", "rmsprop"])
def test_gradients_of_any_layout(name: str) -> None:
    assert_alike(*both(zoo.Zoo(Odd, OPTIMIZERS[name]), zoo.FLAT))


def test_members_that_are_left_go_on_as_before() -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    task, params = zoo.Zoo(make, OPTIMIZERS["momentum_of_some"]), zoo.make_params(3)
    framework = TorchFramework(task, device="cpu")
    state = None
    for number in range(zoo.VISITS):
        # The only one with momentum 0 stays.
        trials = (0, 1, 2) if number < 2 else (0,)
        call = zoo.visit(trials, params[: len(trials)], number, unit=-1, stack=Stacking())
        shard = zoo.make_shard(shape, number=number % 2)
        state, _ = framework.train(call, shard, state, zoo.allocate)
    assert state is not None
    data, _ = take_member(state.buffer, state.meta, 0)
    plain = zoo.train_plain(TorchFramework(task, device="cpu"), shape, params[:1])
    assert zoo.difference(plain.tensors[0], zoo.tensors_of(memoryview(data))) < TOLERANCE


def test_a_visit_that_is_asked_for_again_gives_the_same() -> None:
    make, shape = zoo.ARCHITECTURES["dropout"]
    task, params = zoo.Zoo(make, OPTIMIZERS["step_lr"]), zoo.make_params(2)
    framework = TorchFramework(task, device="cpu")
    shard = zoo.make_shard(shape)

    def visit(state: State | None, number: int) -> State:
        call = zoo.visit((0, 1), params, number, unit=-1, stack=Stacking())
        return framework.train(call, shard, state, zoo.allocate)[0]

    first = visit(None, 0)
    again = visit(None, 0)
    assert bytes(first.buffer) == bytes(again.buffer)
    assert bytes(visit(first, 1).buffer) == bytes(visit(first, 1).buffer)


class Sampling(nn.Module):
    """Dropout that stays on, and a buffer that evaluations change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(16, zoo.CLASSES)
        self.count: torch.Tensor
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count.add_(1)
        return nn.functional.dropout(self.layer(x), 0.5)


def test_evaluations_repeat_themselves_and_leave_the_state_alone() -> None:
    task, params = zoo.Zoo(Sampling), zoo.make_params(MEMBERS)
    stacked = zoo.train_stacked(TorchFramework(task, device="cpu"), zoo.FLAT, params)
    state = stacked.states[0]
    before = bytes(state.buffer)
    call = zoo.visit((0, 1, 2), params, 0, split=Split.VAL, stack=Stacking())
    shard = zoo.make_shard(zoo.FLAT, number=5)
    reports = [
        TorchFramework(task, device="cpu").evaluate(call, shard, state).members for _ in range(2)
    ]
    assert reports[0] == reports[1]
    assert bytes(state.buffer) == before


class Itemized(zoo.Zoo):
    """Metrics as people write them, and one that only a number can go into."""

    def metrics(self, model, batch, params):
        right = (model(batch["x"]).argmax(1) == batch["y"]).sum().item()
        return {"accuracy": right / len(batch["y"]), "squared": right * right}


class Floats(zoo.Zoo):
    def metrics(self, model, batch, params):
        return {"accuracy": float((model(batch["x"]).argmax(1) == batch["y"]).float().mean())}


@pytest.mark.parametrize("kind", [Itemized, Floats])
def test_metrics_that_are_plain_numbers(kind: type[zoo.Zoo], caplog: Any) -> None:
    make, shape = zoo.ARCHITECTURES["mlp"]
    task, params = kind(make), zoo.make_params(MEMBERS)
    stacked = zoo.train_stacked(TorchFramework(task, device="cpu"), shape, params)
    framework = TorchFramework(task, device="cpu")
    trials, shard = tuple(range(MEMBERS)), zoo.make_shard(shape, number=5)
    call = zoo.visit(trials, params, 0, split=Split.VAL, stack=Stacking())
    report = framework.evaluate(call, shard, stacked.states[0])
    framework.evaluate(call, shard, stacked.states[0])
    for trial in trials:
        data, meta = take_member(stacked.states[0].buffer, stacked.states[0].meta, trial)
        alone = _alone(call, trial, params[trial])
        expected = framework.evaluate(alone, shard, State(memoryview(data), meta)).members[0]
        for name, pair in expected.sums.items():
            assert report.members[trial].sums[name] == pytest.approx(pair, rel=TOLERANCE)
    told = [record.message for record in caplog.records if "one by one" in record.message]
    assert len(told) == (kind is Floats)


def _alone(call: VisitCall, trial: int, params: Any) -> VisitCall:
    return zoo.visit((trial,), [params], 0, split=call.split)
