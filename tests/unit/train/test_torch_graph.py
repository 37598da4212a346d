"""The graph of a model, as TensorBoard shows it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch
from torch import nn

from cerebro import Task
from cerebro.testing.tracker_contract import small_run
from cerebro.track.records import VisitFinished
from cerebro.track.tensorboard import TensorBoardTracker
from cerebro.train.torch.graph import model_graph
from tests.tasks import Net

PARAMS = {"width": 8, "lr": 0.1}
BATCH = {"x": torch.zeros(4, 64), "y": torch.zeros(4, dtype=torch.long), "name": ["a"] * 4}


class Residual(nn.Module):
    """Uses one layer twice and adds what went in; branches on a value."""

    def __init__(self):
        super().__init__()
        self.fc = nn.Linear(64, 64)
        self.head = nn.Linear(64, 10)

    def forward(self, x):
        once = self.fc(x)
        twice = self.fc(once).relu_() if once.isfinite().all() else once
        return self.head(twice + x)


class ResidualTask(Net):
    def model(self, params):
        return Residual()


class BrokenTask(Net):
    def loss(self, model, batch, params):
        raise RuntimeError("needs 64 rows")


def graph_of(task: Task) -> dict[str, object]:
    model = task.model(PARAMS).eval()
    return {node.name: node for node in model_graph(task, model, BATCH, PARAMS)}


def test_operations_are_named_by_the_modules_that_call_them():
    graph = graph_of(Net())
    linear = graph["Sequential/Linear[0]/linear"]
    assert linear.inputs == (
        "input/x",
        "Sequential/Linear[0]/weight",
        "Sequential/Linear[0]/bias",
    )
    assert linear.shape == (4, 8)
    assert graph["loss"].inputs == ("cross_entropy",)


def test_every_input_of_a_node_is_a_node():
    for task in (Net(), ResidualTask()):
        graph = graph_of(task)
        assert {name for node in graph.values() for name in node.inputs} <= set(graph)


def test_a_layer_that_is_used_twice_is_there_twice_with_one_weight():
    graph = graph_of(ResidualTask())
    assert {"Residual/Linear[fc]/linear", "Residual/Linear[fc]/linear_1"} <= set(graph)
    assert sum(name.endswith("Linear[fc]/weight") for name in graph) == 1
    assert graph["Residual/add"].inputs == ("Residual/relu", "input/x")


def test_watching_leaves_model_and_batch_as_they_were():
    task = Net()
    model = task.model(PARAMS).eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model_graph(task, model, BATCH, PARAMS)
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert set(BATCH) == {"x", "y", "name"}


def test_a_loss_that_fails_has_no_graph_and_says_so(caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.INFO):
        assert graph_of(BrokenTask()) == {}
    assert "needs 64 rows" in caplog.text


def test_tensorboard_reads_the_graph_that_a_run_writes(tmp_path: Path):
    loader = pytest.importorskip("tensorboard.backend.event_processing.event_file_loader")
    graph_pb2 = pytest.importorskip("tensorboard.compat.proto.graph_pb2")
    model = Net().model(PARAMS).eval()
    nodes = model_graph(Net(), model, BATCH, PARAMS)
    tracker = TensorBoardTracker(tmp_path)
    visits = [record for record in small_run() if isinstance(record, VisitFinished)]
    object.__setattr__(visits[0], "graph", nodes)
    for record in visits:
        tracker.record(record)
    tracker.close()
    (path,) = (tmp_path / "tensorboard" / "t0000").iterdir()
    found = [e.graph_def for e in loader.EventFileLoader(str(path)).Load() if e.graph_def]
    assert len(found) == 1
    graph = graph_pb2.GraphDef.FromString(found[0])
    assert [node.name for node in graph.node] == [node.name for node in nodes]
    (linear,) = [node for node in graph.node if node.name == "Sequential/Linear[4]/linear"]
    (shape,) = linear.attr["_output_shapes"].list.shape
    assert [dim.size for dim in shape.dim] == [4, 10]
