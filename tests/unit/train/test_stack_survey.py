"""Which trials are put together, and why others are not."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
import torch
from torch import nn
from torch.nn import functional

from cerebro import Task
from cerebro.data.columns import TextColumn
from cerebro.task import ParamDict
from cerebro.train.torch.framework import TorchFramework
from cerebro.train.visit import Group, Survey, SurveyCall
from tests import zoo


class Mlp(Task):
    def model(self, params):
        width = params.get("width", 8)
        return nn.Sequential(
            nn.Linear(16, width), nn.Dropout(params.get("p", 0.0)), nn.Linear(width, zoo.CLASSES)
        )

    def optimizer(self, model, params):
        kind = getattr(torch.optim, params.get("optimizer", "SGD"))
        return kind(model.parameters(), lr=params.get("lr", 0.1))

    def loss(self, model, batch, params):
        return functional.cross_entropy(model(batch["x"]), batch["y"])


def survey(task: Task, params: list[dict[str, Any]], **given: Any) -> Survey:
    sizes = given.pop("batch_sizes", (zoo.BATCH,) * len(params))
    shard = given.pop("shard", zoo.make_shard(zoo.FLAT))
    call = SurveyCall(
        trials=tuple(range(10, 10 + len(params))),
        params=tuple(ParamDict(own) for own in params),
        batch_sizes=sizes,
        seed=0,
        **given,
    )
    return TorchFramework(task, device="cpu").survey(call, shard)


def groups(found: Survey) -> list[tuple[int, ...]]:
    return sorted(group.trials for group in found.groups)


def only(found: Survey) -> Group:
    assert len(found.groups) == 1
    return found.groups[0]


def test_numbers_of_the_optimizer_stay_together() -> None:
    group = only(survey(Mlp(), [{"lr": 0.1}, {"lr": 0.2}, {"lr": 0.3}]))
    assert group.trials == (10, 11, 12)
    assert group.obstacle is None
    assert group.state_bytes >= 4 * (16 * 8 + 8 + 8 * zoo.CLASSES + zoo.CLASSES)
    assert set(group.step_s) >= {0, 1, 2, 4, 8}
    assert all(seconds > 0 for seconds in group.step_s.values())


@pytest.mark.parametrize(
    "params",
    [
        [{"width": 8}, {"width": 4}, {"width": 8}],
        [{"p": 0.1}, {"p": 0.2}, {"p": 0.1}],
        [{"optimizer": "Adam"}, {"optimizer": "SGD"}, {"optimizer": "Adam"}],
        [{"amp": "bf16"}, {"amp": None}, {"amp": "bf16"}],
    ],
    ids=["shape", "dropout", "optimizer", "precision"],
)
def test_what_differs_in_structure_is_apart(params: list[dict[str, Any]]) -> None:
    found = survey(Mlp(), params)
    assert groups(found) == [(10, 12), (11,)]
    assert all(group.obstacle is None for group in found.groups)


def test_batch_sizes_are_apart() -> None:
    found = survey(Mlp(), [{}, {}, {}], batch_sizes=(8, 16, 8))
    assert groups(found) == [(10, 12), (11,)]


def test_numbers_that_the_loss_uses_as_tensors_stay_together() -> None:
    class Weighted(Mlp):
        def loss(self, model, batch, params):
            penalty = sum(weight.pow(2).sum() for weight in model.parameters())
            return super().loss(model, batch, params) + params["l2"] * penalty

    assert groups(survey(Weighted(), [{"l2": 0.1}, {"l2": 0.2}])) == [(10, 11)]


def test_numbers_that_the_loss_needs_as_such_split_the_group() -> None:
    class Smoothed(Mlp):
        def loss(self, model, batch, params):
            smoothing = params["smoothing"]
            return functional.cross_entropy(
                model(batch["x"]), batch["y"], label_smoothing=smoothing
            )

    params = [{"smoothing": s, "lr": lr} for s in (0.0, 0.1) for lr in (0.1, 0.2)]
    found = survey(Smoothed(), params)
    assert groups(found) == [(10, 11), (12, 13)]
    assert all(group.obstacle is None for group in found.groups)


def test_text_params_of_the_loss_split_the_group() -> None:
    class Named(Mlp):
        def loss(self, model, batch, params):
            scale = 2.0 if params["kind"] == "double" else 1.0
            return scale * super().loss(model, batch, params)

    params = [{"kind": "double"}, {"kind": "single"}, {"kind": "double"}]
    assert groups(survey(Named(), params)) == [(10, 12), (11,)]


class Branching(Mlp):
    def loss(self, model, batch, params):
        loss = super().loss(model, batch, params)
        return loss if float(loss.detach()) > 0 else -loss


class Augmented(Mlp):
    def augment(self, batch, rng, params):
        return batch


class Lbfgs(Mlp):
    def optimizer(self, model, params):
        return torch.optim.Adadelta(model.parameters())


class Dampened(Mlp):
    def optimizer(self, model, params):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.5)


class Counting(Mlp):
    """Its forward pass depends on how often it was called, which nobody can trace."""

    def model(self, params):
        class Odd(nn.Linear):
            calls = 0

            def forward(self, x):
                self.calls += 1
                return super().forward(x) * self.calls

        return Odd(16, zoo.CLASSES)


class Cycling(Mlp):
    scheduler_step = "batch"

    def optimizer(self, model, params):
        made = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        return made, torch.optim.lr_scheduler.OneCycleLR(made, 0.1, total_steps=100)


class Clamped(Mlp):
    def optimizer(self, model, params):
        made = super().optimizer(model, params)
        made.register_step_post_hook(lambda *_: None)
        return made


class Replacing(Mlp):
    """Keeps a mean in a buffer that it makes anew each time."""

    def model(self, params):
        class Mean(nn.Linear):
            def forward(self, x):
                self.mean = 0.9 * self.mean + 0.1 * x.mean()
                return super().forward(x)

        made = Mean(16, zoo.CLASSES)
        made.register_buffer("mean", torch.zeros(()))
        return made


class Drawing(Mlp):
    def loss(self, model, batch, params):
        return super().loss(model, batch, params) * (1 + random.random())


@pytest.mark.parametrize(
    ("task", "why_not"),
    [
        (Cycling(), "OneCycleLR moves momentum"),
        (Clamped(), "the optimizer has hooks"),
        (Replacing(), "mean is replaced"),
        (Drawing(), "Python's or NumPy's generator"),
        (Branching(), "item"),
        (Augmented(), "Augmented.augment"),
        (Lbfgs(), "Adadelta has no stacked version"),
        (Dampened(), "dampening"),
        (Counting(), "other losses"),
    ],
    ids=[
        *("cycle", "hook", "replaced", "random"),
        "branch",
        "augment",
        "optimizer",
        "option",
        "wrong",
    ],
)
def test_what_cannot_be_stacked_is_told(task: Task, why_not: str) -> None:
    group = only(survey(task, [{}, {}]))
    assert group.obstacle is not None
    assert why_not in group.obstacle
    assert "\n" not in group.obstacle


class Told(Mlp):
    """Tells its meter what `means` makes of the logits."""

    def __init__(self, means: Callable[..., dict[str, Any]]) -> None:
        self._means = means

    def loss(self, model, batch, params):
        logits = model(batch["x"])
        if self.meter is not None:
            self.meter.add(self._means(logits, params), len(logits))
        return functional.cross_entropy(logits, batch["y"])


class Stepping(Mlp):
    """Its loss is a little smaller at each step."""

    def __init__(self) -> None:
        self.steps = 0

    def loss(self, model, batch, params):
        self.steps += 1
        return 0.9999**self.steps * super().loss(model, batch, params)


class Lazy(Mlp):
    """Makes what it keeps when it is first needed."""

    def __init__(self) -> None:
        self.weights: Any = None

    def loss(self, model, batch, params):
        if self.weights is None:
            self.weights = torch.ones(zoo.CLASSES)
        return functional.cross_entropy(model(batch["x"]), batch["y"], self.weights)


@pytest.mark.parametrize("task", [Stepping(), Lazy()], ids=["steps", "lazy"])
def test_trials_whose_loss_changes_their_task_are_not_stacked(task: Any) -> None:
    before = dict(vars(task))
    assert only(survey(task, [{}, {}])).obstacle == "loss() changes its task, or what that keeps"
    assert vars(task).keys() == before.keys()


class Teller(Mlp):
    """Has what tells its meter bound to itself, and cannot be pickled."""

    def __init__(self) -> None:
        self.tell = self._tell

    def __getstate__(self) -> dict[str, Any]:
        raise TypeError("not this one")

    def _tell(self, logits: torch.Tensor) -> None:
        if self.meter is not None:
            self.meter.add({"size": logits.detach().abs().mean()}, len(logits))

    def loss(self, model, batch, params):
        logits = model(batch["x"])
        self.tell(logits)
        return functional.cross_entropy(logits, batch["y"])


def test_what_a_task_tells_by_a_method_bound_to_it_is_known_of_stacks() -> None:
    assert only(survey(Teller(), [{}, {}], goes_by=frozenset({"size"}))).obstacle is None


@pytest.mark.parametrize("first", [(0.1, 0.1), (0.1, 0.2)], ids=["alike", "apart"])
def test_what_is_told_as_a_plain_number_keeps_no_trials_apart(first) -> None:
    task = Told(lambda logits, params: {"rate": float(params["lr"])})
    params = [{"lr": lr} for lr in (*first, 0.2, 0.3, 0.3)]
    assert groups(survey(task, params)) == [(10, 11, 12, 13, 14)]


class Moving(Mlp):
    """Tells a mean that it goes on with from step to step."""

    def __init__(self, is_list: bool) -> None:
        self.seen: Any = [torch.zeros(())] if is_list else torch.zeros(())

    def loss(self, model, batch, params):
        logits = model(batch["x"])
        if self.meter is not None:
            if isinstance(self.seen, list):
                self.seen.append(0.9 * self.seen[-1] + logits.detach().exp().mean())
                self.meter.add({"moving": self.seen[-1]}, len(logits))
            else:
                self.seen = 0.9 * self.seen + logits.detach().exp().mean()
                self.meter.add({"moving": self.seen}, len(logits))
        return functional.cross_entropy(logits, batch["y"])


@pytest.mark.parametrize("is_list", [False, True])
def test_a_task_that_goes_on_with_what_it_tells_is_left_as_it_is(is_list) -> None:
    shard, params = zoo.make_shard(zoo.FLAT), [ParamDict(), ParamDict()]
    call = SurveyCall(trials=(10, 11), params=tuple(params), batch_sizes=(zoo.BATCH,) * 2, seed=0)
    framework = TorchFramework(Moving(is_list), device="cpu")
    assert only(framework.survey(call, shard)).obstacle is None
    assert only(framework.survey(replace(call, goes_by=frozenset({"moving"})), shard)).obstacle
    alone = replace(zoo.visit((10,), params[:1], 0), stack=None)
    _, report = framework.train(alone, shard, None, zoo.allocate)
    assert report.members[0].sums.keys() == {"loss", "moving"}


def test_what_a_run_goes_by_must_be_known_of_members() -> None:
    task = Told(lambda logits, params: {"size": logits.mean(), "half": 0.5})
    assert only(survey(task, [{}, {}], goes_by=frozenset({"loss", "size"}))).obstacle is None
    obstacle = only(survey(task, [{}, {}], goes_by=frozenset({"half"}))).obstacle
    assert obstacle == "the run goes by train_half, which stacks cannot tell"


def test_functions_that_hold_other_values_are_apart() -> None:
    class Leaky(Mlp):
        def model(self, params):
            class Act(nn.Module):
                def __init__(self, act):
                    super().__init__()
                    self.act = act

                def forward(self, x):
                    return self.act(x)

            slope = params["slope"]
            act = Act(lambda x: functional.leaky_relu(x, slope))
            return nn.Sequential(nn.Linear(16, 8), act, nn.Linear(8, zoo.CLASSES))

    params = [{"slope": s, "lr": lr} for s in (0.1, 0.5) for lr in (0.1, 0.2)]
    assert groups(survey(Leaky(), params)) == [(10, 11), (12, 13)]


def test_numbers_that_some_trials_do_not_have_split_the_group() -> None:
    class Maybe(Mlp):
        def loss(self, model, batch, params):
            weight = params["weight"]
            loss = super().loss(model, batch, params)
            return loss if weight is None else loss * weight

    params: list[dict[str, Any]] = [{"weight": w} for w in (0.1, 0.2, None, 0.1)]
    found = survey(Maybe(), params)
    assert (12,) in groups(found)
    assert sorted(t for group in found.groups for t in group.trials) == [10, 11, 12, 13]


def test_noise_in_weights_that_do_not_bear_on_the_loss_is_no_obstacle() -> None:
    class Normed(Mlp):
        def model(self, params):
            return nn.Sequential(nn.Linear(16, 8), nn.BatchNorm1d(8), nn.Linear(8, zoo.CLASSES))

        def optimizer(self, model, params):
            return torch.optim.Adam(model.parameters(), lr=params["lr"])

    assert only(survey(Normed(), [{"lr": 0.1}, {"lr": 0.01}])).obstacle is None


def test_a_column_of_text_cannot_be_stacked() -> None:
    shard = zoo.make_shard(zoo.FLAT, rows=4)
    columns = {**shard.columns, "t": TextColumn(pa.array(list("abcd"), pa.large_string()))}
    group = only(survey(Mlp(), [{}, {}], shard=replace(shard, columns=columns)))
    assert group.obstacle is not None
    assert "not a tensor" in group.obstacle


def test_a_trial_that_cannot_be_built_is_left_to_itself() -> None:
    found = survey(Mlp(), [{}, {"optimizer": "Nothing"}, {}])
    assert groups(found) == [(10, 12), (11,)]


def test_the_survey_is_the_same_on_every_run() -> None:
    params = [{"lr": 0.1 * k, "width": 4 + k % 2} for k in range(1, 7)]
    assert survey(Mlp(), params).groups == survey(Mlp(), params).groups


def test_measured_steps_replace_predicted_ones() -> None:
    group = only(survey(Mlp(), [{"lr": 0.1}] * 4, measure=True))
    assert set(group.step_s) == {0, 1, 2, 4}
