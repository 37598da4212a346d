"""The task of a recipe: what it builds from params, and that its rates hop exactly."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import Dataset, from_arrays
from cerebro.errors import UsageError
from cerebro.task import RunFacts, Task
from cerebro.train.stack.trace import ReadParams
from cerebro.zoo.objectives import LOSSES, METRICS
from cerebro.zoo.optimizers import OPTIMIZERS, optimizer_name, optimizer_options
from cerebro.zoo.params import epoch_lr, rule_of
from cerebro.zoo.pictures import as_floats
from cerebro.zoo.rates import lr_at
from cerebro.zoo.recipe import AugmentedTask, RecipeTask
from cerebro.zoo.schedule import RateSchedule
from tests.unit.train.bare import (
    BATCH_SIZE,
    allocate,
    assert_equals_bare_loop,
    make_call,
    run_visits,
)

PARAMS: dict[str, Any] = {
    "model.name": "cnn",
    "model.input_shape": [8, 8, 1],
    "model.n_classes": 3,
    "model.dropout": 0.2,
    "optimizer.name": "SGD",
    "optimizer.lr": 0.02,
    "optimizer.momentum": 0.9,
    "batch_size": BATCH_SIZE,
    "training.n_epochs": 3,
    "training.loss": "categorical_crossentropy",
    "training.metrics": ["accuracy", "top_k_categorical_accuracy"],
}
WARM = {
    "training.lr_warmup_epochs": 1,
    "training.lr_schedule": [{"start_epoch": 2, "multiplier": 0.1}],
}
#: As `make_data` cuts them: batches of 8, 8 and 6 rows in each of two shards.
ROWS = (22, 22)


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 3, 55)
    x = (rng.integers(0, 128, (55, 1, 8, 8)) + 60 * y[:, None, None, None]).astype(np.uint8)
    folder = tmp_path_factory.mktemp("pictures")
    return from_arrays(str(folder / "data"), {"x": x, "y": y}, shards=2, validation=0.2)


def in_gang(task: Task, workers: int) -> Task:
    task.facts = RunFacts(shard_rows=ROWS, workers=workers)
    return task


# Rates


@pytest.mark.parametrize("task", [RecipeTask, AugmentedTask])
def test_a_chain_of_visits_equals_a_plain_loop_with_warm_up_and_decay(task, pictures):
    params = {**PARAMS, **WARM, "data.augment": {"shift": 0.2, "zoom": 0.3, "flip": True}}
    assert_equals_bare_loop(in_gang(task(), 4), pictures, params={**params, "batch_size": 2})


def test_rates_go_on_where_the_state_was_taken(pictures):
    params = {**PARAMS, **WARM, "batch_size": 2}
    chain = run_visits(in_gang(RecipeTask(), 4), pictures, 6, params)
    rule = rule_of(params)
    for visit, state in enumerate(chain.states, start=1):
        expected = lr_at(3 * visit, 6, 4, 0.02, rule)
        group = state.meta["groups"][0]
        assert group["lr"] == expected.lr
        assert group["momentum"] == 0.9 * expected.momentum
        assert state.meta["scheduler"] == {"batch": 3 * visit, "steps": 6}


def test_a_batch_may_be_given_for_all_workers_together():
    facts = RunFacts(shard_rows=(100, 90), workers=4)
    each = {**PARAMS, **WARM, "batch_size": 16}
    whole = {key: value for key, value in each.items() if key != "batch_size"}
    whole["global_batch_size"] = 64
    assert [epoch_lr(each, facts, n) for n in range(3)] == [
        epoch_lr(whole, facts, n) for n in range(3)
    ]
    assert epoch_lr(each, facts, 0) == 0.02 * 4
    assert epoch_lr(each, facts, 2) == pytest.approx(0.02 * 4 * 0.1)


def test_warm_up_works_for_a_trial_alone(pictures):
    chain = run_visits(in_gang(RecipeTask(), 1), pictures, 2, {**PARAMS, **WARM})
    assert chain.states[-1].meta["groups"][0]["lr"] == 0.02


def test_a_model_can_be_looked_at_without_a_run():
    _, schedule = RecipeTask().optimizer(RecipeTask().model(PARAMS), PARAMS)
    assert schedule.get_last_lr() == [0.02]


def test_a_copy_with_another_rate_goes_on_with_that(pictures):
    params = {**PARAMS, **WARM, "batch_size": 4}
    chain = run_visits(in_gang(RecipeTask(), 2), pictures, 2, params)
    new = {**params, "optimizer.lr": 0.5}
    shard = pictures.open_shard("train", 0)
    call = make_call(2, params=new, origin=params)
    after, _ = chain.framework.train(call, shard, chain.states[-1], allocate)
    assert after.meta["groups"][0]["lr"] == pytest.approx(0.5 * 2)


def test_a_copy_with_another_batch_size_goes_on_at_the_same_part_of_its_epoch(pictures):
    params = {**PARAMS, **WARM, "batch_size": 2}
    chain = run_visits(in_gang(RecipeTask(), 4), pictures, 3, params)
    new = {**params, "batch_size": 1}
    shard = pictures.open_shard("train", 1)
    call = make_call(3, params=new, origin=params, batch_size=4)
    after, _ = chain.framework.train(call, shard, chain.states[-1], allocate)
    steps = RunFacts(shard_rows=ROWS).steps_per_epoch(4)
    assert after.meta["scheduler"] == {"batch": 2 * steps, "steps": steps}
    assert after.meta["groups"][0]["lr"] == lr_at(2 * steps, steps, 4, 0.02, rule_of(new)).lr


@pytest.mark.parametrize(
    ("state", "batch"),
    [
        ({"batch": 0, "steps": 0}, 0),
        ({"batch": 7, "steps": 10}, 7),
        ({"batch": 7}, 7),
        ({"batch": 20, "steps": 20}, 10),
        ({"batch": 19, "steps": 20}, 9),
        ({"batch": 3, "steps": 2}, 15),
    ],
    ids=str,
)
def test_fractional_epochs_travel(state, batch):
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
    schedule = RateSchedule(optimizer, rule_of(PARAMS), workers=1, steps_per_epoch=10)
    schedule.load_state_dict(state)
    assert schedule.state_dict()["batch"] == batch


def test_only_rates_of_stackable_trials_move():
    model = RecipeTask().model(PARAMS)
    cases = {
        "cosine": ({"training.lr_schedule": "cosine"}, 4, False),
        "warm-up alone": ({"training.lr_warmup_epochs": 2}, 1, False),
        "warm-up together": ({"training.lr_warmup_epochs": 2}, 2, True),
        "decay": (WARM, 1, True),
        "uncorrected": ({**WARM, "training.momentum_correction": False}, 4, False),
        "without momentum": ({**WARM, "optimizer.momentum": 0}, 4, False),
    }
    found = {}
    for name, (changes, workers, _) in cases.items():
        _, schedule = in_gang(RecipeTask(), workers).optimizer(model, {**PARAMS, **changes})
        found[name] = schedule.cycle_momentum
    assert found == {name: expected for name, (_, _, expected) in cases.items()}


def test_groups_keep_their_own_rates_and_momenta():
    weights = [nn.Parameter(torch.zeros(1)) for _ in range(2)]
    groups = [{"params": weights[:1], "lr": 1.0}, {"params": weights[1:], "momentum": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1, momentum=0.9)
    rule = rule_of({**PARAMS, **WARM})
    schedule = RateSchedule(optimizer, rule, workers=2, steps_per_epoch=3)
    for batch in range(9):
        for group, (lr, momentum) in zip(
            optimizer.param_groups, [(1.0, 0.9), (0.1, 0.5)], strict=True
        ):
            expected = lr_at(batch, 3, 2, lr, rule)
            assert (group["lr"], group["momentum"]) == (expected.lr, momentum * expected.momentum)
        schedule.step()


# Optimizers


@pytest.mark.parametrize("name", sorted(OPTIMIZERS))
def test_the_table_of_optimizers_is_that_of_pytorch(name, pictures):
    signature = inspect.signature(getattr(torch.optim, name))
    how = {"params", "lr", "foreach", "fused", "capturable", "differentiable"}
    assert set(OPTIMIZERS[name]) == set(signature.parameters) - how
    params = {**PARAMS, "optimizer.name": name.lower(), "optimizer.lr": 0.01}
    del params["optimizer.momentum"]
    chain = run_visits(in_gang(RecipeTask(), 1), pictures, 2, params)
    assert np.isfinite(chain.reports[-1].members[0].losses).all()


def test_every_optimizer_of_pytorch_that_takes_plain_gradients_is_known():
    classes = {
        name
        for name, value in vars(torch.optim).items()
        if isinstance(value, type) and issubclass(value, torch.optim.Optimizer)
    }
    assert classes - {"Optimizer", "LBFGS", "Muon", "SparseAdam"} == set(OPTIMIZERS)


@pytest.mark.parametrize(
    "keras", ["Adam", "SGD", "RMSprop", "Adagrad", "Adadelta", "Nadam", "Adamax"]
)
def test_names_may_be_spelt_as_keras_spells_them(keras):
    assert optimizer_name(keras).lower() == keras.lower()


def test_options_may_be_spelt_as_keras_spells_them():
    assert optimizer_options("RMSprop", {"rho": 0.8, "epsilon": 1e-7}) == {
        "alpha": 0.8,
        "eps": 1e-7,
    }
    assert optimizer_options("Adam", {"beta_2": 0.99}) == {"betas": (0.9, 0.99)}
    assert optimizer_options("Adadelta", {"rho": 0.8}) == {"rho": 0.8}


def test_unknown_optimizers_and_options_list_what_exists():
    with pytest.raises(UsageError, match=r"unknown optimizer 'adamm'. Known: ASGD, .*'Adam'\?"):
        optimizer_name("adamm")
    with pytest.raises(UsageError, match=r"Adam has no option 'momentum'. It has: lr, betas"):
        optimizer_options("Adam", {"momentum": 0.9})


def test_l2_is_weight_decay_of_kernels_alone():
    params = {**PARAMS, "model.name": "resnet_small", "model.input_shape": [8, 8, 1]}
    del params["model.dropout"]
    task = RecipeTask()
    model = task.model(params)
    optimizer, _ = task.optimizer(model, params)
    kernels, rest = optimizer.param_groups
    assert (kernels["weight_decay"], rest["weight_decay"]) == (1e-4, 0)
    assert all(parameter.dim() >= 2 for parameter in kernels["params"])
    optimizer, _ = task.optimizer(model, {**params, "optimizer.weight_decay": 0.5})
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.5001, 0.5]


def test_weight_decay_of_the_class_stays_where_nobody_says_otherwise():
    params = {key: value for key, value in PARAMS.items() if key != "optimizer.momentum"}
    task = RecipeTask()
    optimizer, _ = task.optimizer(task.model(params), {**params, "optimizer.name": "AdamW"})
    assert optimizer.param_groups[0]["weight_decay"] == 0.01


def test_an_optimizer_without_weight_decay_refuses_l2():
    params = {**PARAMS, "model.name": "resnet_small", "optimizer.name": "Rprop"}
    del params["model.dropout"], params["optimizer.momentum"]
    task = RecipeTask()
    with pytest.raises(UsageError, match=r"Rprop does not have: set model.l2_reg to 0"):
        task.optimizer(task.model(params), params)


# Losses, metrics, pictures


def test_losses_and_metrics_of_classes():
    logits = torch.tensor([[2.0, 0, 0, 0, 0, 0, -1], [0, 2.0, 0, 0, 0, 0, -1]])
    y = torch.tensor([0, 6])
    expected = nn.functional.cross_entropy(logits, y)
    assert LOSSES["categorical_crossentropy"](logits, y) == expected
    assert LOSSES["sparse_categorical_crossentropy"](logits, y) == expected
    one_hot = nn.functional.one_hot(y, 7).float()
    assert LOSSES["categorical_crossentropy"](logits, one_hot) == pytest.approx(expected.item())
    assert LOSSES["mse"](logits, y) == nn.functional.mse_loss(logits, one_hot)
    for targets in (y, one_hot):
        assert METRICS["accuracy"](logits, targets) == 0.5
        assert METRICS["top_k_categorical_accuracy"](logits, targets) == 0.5


def test_losses_and_metrics_of_yes_and_no():
    logits = torch.tensor([[3.0], [-1.0], [1.0], [2.0]])
    for y in (torch.tensor([1, 0, 0, 1]), torch.tensor([1.0, 0, 0, 1]).unsqueeze(1)):
        expected = nn.functional.binary_cross_entropy_with_logits(logits[:, 0], y.view(-1).float())
        assert LOSSES["binary_crossentropy"](logits, y) == expected
        assert METRICS["accuracy"](logits, y) == 0.75


def test_targets_that_do_not_fit_the_model_are_refused():
    with pytest.raises(UsageError, match="a target for each logit"):
        LOSSES["mse"](torch.zeros(2, 3), torch.zeros(2))
    with pytest.raises(UsageError, match="softmax over one class"):
        LOSSES["categorical_crossentropy"](torch.zeros(2, 1), torch.zeros(2, dtype=torch.long))


def test_pictures_become_numbers():
    bytes_ = torch.arange(12, dtype=torch.uint8).view(1, 3, 2, 2)
    assert torch.equal(as_floats(bytes_), bytes_ / 255)
    floats = torch.randn(1, 3, 2, 2)
    assert as_floats(floats, "resnet50") is floats
    caffe = as_floats(bytes_, "resnet50")
    for channel, mean in enumerate((103.939, 116.779, 123.68)):
        assert torch.equal(caffe[:, channel], bytes_[:, 2 - channel].float() - mean)
    standard = as_floats(bytes_, {"mean": [0.1, 0.2, 0.3], "std": [1, 2, 4]})
    assert torch.allclose(standard[:, 2], (bytes_[:, 2] / 255 - 0.3) / 4)
    with pytest.raises(UsageError, match="has 1 and the pictures have 3"):
        as_floats(bytes_, {"mean": [0.5], "std": [0.5]})


@pytest.mark.parametrize("augment", [{"crop": 8}, {"shift": 0.33, "zoom": 0.5}], ids=str)
def test_validation_is_never_augmented(augment, pictures):
    params = {**PARAMS, "data.augment": augment, "model.dropout": 0.0}
    chain = run_visits(in_gang(AugmentedTask(), 1), pictures, 1, params)
    plain = chain.evaluate().members[0].sums
    chain.params = {**params, "data.augment": {}}
    assert chain.evaluate().members[0].sums == plain


def test_an_evaluation_asks_the_model_once_a_batch():
    task = RecipeTask()
    model = task.model(PARAMS).eval()
    seen = []
    model.register_forward_hook(lambda *arguments: seen.append(1))
    first, second = (
        {"x": torch.full((2, 1, 8, 8), fill, dtype=torch.uint8), "y": torch.tensor([0, 2])}
        for fill in (0, 200)
    )
    with torch.no_grad():
        task.loss(model, first, PARAMS)
        once = task.metrics(model, first, PARAMS)
        assert len(seen) == 1
        # Of another batch nothing is known, nor of the same one asked for again.
        task.loss(model, second, PARAMS)
        assert task.metrics(model, first, PARAMS) == once
        assert len(seen) == 3


def test_predictions_of_classes(pictures):
    task = RecipeTask()
    model = task.model(PARAMS).eval()
    batch = {"x": torch.zeros(2, 1, 8, 8, dtype=torch.uint8)}
    found = task.predict(model, batch, PARAMS)
    assert found["class"].shape == (2,)
    assert torch.allclose(found["probability"].sum(1), torch.ones(2))


def test_trials_that_differ_in_rates_alone_share_what_is_built():
    reads = set()
    RecipeTask().model(ReadParams(PARAMS, reads))
    assert reads == {"model.name", "model.input_shape", "model.n_classes", "model.dropout"}
