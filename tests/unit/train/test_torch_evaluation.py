"""The PyTorch evaluation of a state, and models loaded from one."""

from __future__ import annotations

import enum
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cerebro.data import from_arrays
from cerebro.errors import UsageError
from cerebro.train.torch.framework import TorchFramework
from tests.unit.train.bare import Chain, LineTask, make_call, run_visits


def test_evaluation_weighs_metrics_by_rows_over_an_uneven_last_batch(tmp_path):
    values = np.arange(300, dtype=np.float32)
    data = from_arrays(
        tmp_path,
        {"x": np.zeros((300, 4), "f4"), "y": np.zeros((300, 1), "f4")},
        val={"x": np.zeros((300, 4), "f4"), "y": values[:, None]},
        shards=1,
    )

    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"mean": batch["y"].mean(), "most": batch["y"].max().item()}

    sums = run_visits(T(), data, 1).evaluate().members[0].sums
    y = data.open_shard("val", 0).columns["y"]
    assert sums["mean"][0] / sums["mean"][1] == pytest.approx(149.5, rel=1e-7)
    batches = [(float(y[at : at + 8].max()), len(y[at : at + 8])) for at in range(0, 300, 8)]
    assert sums["most"] == (sum(most * rows for most, rows in batches), 300)


def test_evaluation_gives_the_loss_of_the_model_without_dropout(data):
    chain = run_visits(LineTask(), data, 1)
    shard = data.open_shard("val", 0)
    x, y = (torch.from_numpy(shard.columns[name].copy()) for name in ("x", "y"))
    with torch.no_grad():
        expected = ((chain.model(x) - y) ** 2).mean().item()
    total, rows = chain.evaluate().members[0].sums["loss"]
    assert total / rows == pytest.approx(expected, rel=1e-6)


def test_evaluation_leaves_the_state_as_it_was(data):
    class Counting(nn.Module):
        def __init__(self):
            super().__init__()
            self.line = nn.Linear(4, 1)
            self.register_buffer("calls", torch.zeros(1))

        def forward(self, x):
            self.calls += 1
            return self.line(x)

    class T(LineTask):
        def model(self, params):
            return Counting()

    chain = run_visits(T(), data, 2)
    before = bytes(chain.states[-1].buffer)
    chain.evaluate()
    assert bytes(chain.states[-1].buffer) == before


def test_evaluating_twice_gives_the_same(data):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"random": torch.rand(1)}

    chain = run_visits(T(), data, 1)
    assert chain.evaluate().members[0].sums == chain.evaluate().members[0].sums


def test_metric_names_are_the_loss_and_what_metrics_gives(data):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"error": 0.5, "bias": 0.1}

    framework = TorchFramework(T(), device="cpu")
    names = framework.metric_names(make_call(), data.open_shard("train", 0))
    assert names == ("loss", "error", "bias")


class Renormalising(nn.Module):
    """Writes to a parameter in every forward pass, in evaluation too."""

    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(4, 4, max_norm=1e-3)
        self.line = nn.Linear(4, 1)

    def forward(self, x):
        return self.line(x + self.table(torch.arange(4)).sum(0))


class Renorm(LineTask):
    def model(self, params):
        return Renormalising()

    def optimizer(self, model, params):
        # Large steps: after a visit's last one the table's norm is not what it may be.
        return torch.optim.SGD(model.parameters(), lr=0.5)


class Clamping(LineTask):
    def metrics(self, model, batch, params):
        with torch.no_grad():
            for param in model.parameters():
                param.clamp_(-1e-3, 1e-3)
        return {"error": 0.5}


class Attribute(LineTask):
    def model(self, params):
        model = super().model(params)
        model.seen = torch.zeros(3)
        return model

    def metrics(self, model, batch, params):
        model.seen.add_(1)
        return {"seen": model.seen.mean()}


@pytest.mark.parametrize("task", [Renorm(), Clamping(), Attribute()])
def test_an_evaluation_that_writes_to_the_model_leaves_the_state_as_it_was(data, task):
    chain = run_visits(task, data, 2)
    before = bytes(chain.states[-1].buffer)
    chain.evaluate()
    assert bytes(chain.states[-1].buffer) == before


def test_an_evaluation_that_writes_to_the_model_does_not_disturb_the_next(data):
    chain = run_visits(Clamping(), data, 2)
    assert chain.evaluate().members[0].sums == chain.evaluate().members[0].sums


def test_evaluations_of_a_small_and_a_large_state_take_turns(data):
    class T(LineTask):
        def model(self, params):
            return nn.Sequential(nn.Linear(4, params["width"]), nn.Linear(params["width"], 1))

    framework = TorchFramework(T(), device="cpu")
    chains = []
    for width in (3, 2000, 5):
        chain = Chain(T(), data, {"width": width}).run(1)
        expected = chain.evaluate().members[0].sums
        chain.framework = framework
        chains.append((chain, expected))
    for chain, expected in chains * 2:
        assert chain.evaluate().members[0].sums == expected


def test_an_evaluation_works_at_page_aligned_memory_wherever_the_state_lies(data):
    places = []

    class T(LineTask):
        def metrics(self, model, batch, params):
            places.append(model[0].weight.data_ptr() % 4096)
            return {}

    chain = run_visits(T(), data, 1)
    chain.evaluate()
    shifted = memoryview(bytearray(len(chain.states[-1].buffer) + 1))[1:]
    shifted[:] = chain.states[-1].buffer
    chain.states.append(replace(chain.states[-1], buffer=shifted))
    chain.evaluate()
    assert len(set(places)) == 1
    assert places[0] % 64 == 0


def test_an_evaluation_takes_batches_of_the_trials_size(data):
    sizes = []

    class T(LineTask):
        def metrics(self, model, batch, params):
            sizes.append(len(batch["x"]))
            return {}

    run_visits(T(), data, 1).evaluate(batch_size=4)
    assert sizes == [4, 4, 3]


def test_a_task_may_set_the_size_of_evaluation_batches(data):
    sizes = []

    class T(LineTask):
        eval_batch_size = 6

        def metrics(self, model, batch, params):
            sizes.append(len(batch["x"]))
            return {}

    chain = run_visits(T(), data, 1)
    total, rows = chain.evaluate().members[0].sums["loss"]
    assert sizes == [6, 5]
    expected, _ = run_visits(LineTask(), data, 1).evaluate().members[0].sums["loss"]
    assert total / rows == pytest.approx(expected / rows, rel=1e-6)


@pytest.mark.parametrize("size", [0, "64", 2.5])
def test_a_size_of_evaluation_batches_that_is_none_is_refused(data, size):
    task = type("T", (LineTask,), {"eval_batch_size": size})()
    with pytest.raises(UsageError, match="eval_batch_size must be an integer"):
        run_visits(task, data, 1).evaluate()


def test_a_metric_may_not_take_the_name_of_the_loss(data):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {"loss": 0.0}

    with pytest.raises(UsageError, match="must leave the name 'loss'"):
        run_visits(T(), data, 1).evaluate()
    with pytest.raises(UsageError, match="must leave the name 'loss'"):
        TorchFramework(T(), device="cpu").metric_names(make_call(), data.open_shard("train", 0))


class Names(enum.StrEnum):
    ERROR = "error"


class OldNames(str, enum.Enum):  # noqa: UP042 - what people write
    ERROR = "error"


@pytest.mark.parametrize("name", [Names.ERROR, OldNames.ERROR, np.str_("error")])
def test_names_of_metrics_arrive_as_plain_text(data, name):
    class T(LineTask):
        def metrics(self, model, batch, params):
            return {name: np.float64(0.5)}

    chain = run_visits(T(), data, 1)
    sums = chain.evaluate().members[0].sums
    told = chain.framework.metric_names(make_call(), data.open_shard("train", 0))
    assert sums["error"] == (5.5, 11)
    assert {type(found) for found in (*sums, *told)} == {str}
    assert type(sums["error"][0]) is float


# Loading


def test_a_loaded_model_is_in_evaluation_mode_with_the_weights_of_the_state(data):
    chain = run_visits(LineTask(), data, 3)
    model = chain.model
    assert not model.training
    weights = {f"model.{name}": p.detach() for name, p in model.named_parameters()}
    assert all(torch.equal(chain.tensors[name], value) for name, value in weights.items())


def test_changing_a_loaded_model_leaves_the_state_alone(data):
    chain = run_visits(LineTask(), data, 1)
    before = bytes(chain.states[-1].buffer)
    with torch.no_grad():
        chain.model[0].weight.zero_()
    assert bytes(chain.states[-1].buffer) == before


def test_loading_leaves_the_callers_generators_alone(data):
    chain = run_visits(LineTask(), data, 1)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    _ = chain.model
    assert torch.equal(torch.rand(1), expected)


def test_a_loaded_model_has_the_random_constants_it_was_trained_with(data):
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.projection = torch.randn(4, 4)
            self.line = nn.Linear(4, 1)

        def forward(self, x):
            return self.line(x @ self.projection)

    built = []

    class T(LineTask):
        def model(self, params):
            built.append(Projected())
            return built[-1]

    framework = TorchFramework(T(), device="cpu")
    call = replace(make_call(), trials=(3,), seed=5)
    state, _ = framework.train(
        call, data.open_shard("train", 0), None, lambda n: memoryview(bytearray(n))
    )
    assert torch.equal(framework.load({}, state).projection, built[0].projection)


def test_loading_leaves_the_callers_generators_alone_if_it_fails(data):
    class Broken(LineTask):
        def model(self, params):
            raise ValueError("no model today")

    chain = run_visits(LineTask(), data, 1)
    chain.framework = TorchFramework(Broken(), device="cpu")
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    with pytest.raises(ValueError, match="no model today"):
        _ = chain.model
    assert torch.equal(torch.rand(1), expected)


def test_loading_seeds_no_accelerator(data, monkeypatch):
    chain = run_visits(LineTask(), data, 1)
    seeded = []
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch, "manual_seed", seeded.append)
    _ = chain.model
    assert seeded == []
