from __future__ import annotations

import pickle

import pytest

from cerebro import Task
from cerebro.errors import UnknownParamError
from cerebro.task import ParamDict


class Net(Task):
    def model(self, params):
        return "model"

    def metrics(self, model, batch, params):
        return {"accuracy": 1.0}


class DeepNet(Net):
    pass


@pytest.mark.parametrize(
    ("method", "arguments", "signature"),
    [
        ("model", 1, "model(self, params)"),
        ("optimizer", 2, "optimizer(self, model, params)"),
        ("loss", 3, "loss(self, model, batch, params)"),
    ],
)
def test_what_must_be_written_says_how(method, arguments, signature):
    with pytest.raises(NotImplementedError) as caught:
        getattr(Task(), method)(*[None] * arguments)
    assert str(caught.value) == f"Task must define {signature}."


def test_a_subclass_is_named_where_it_lacks_something():
    with pytest.raises(NotImplementedError, match=r"^DeepNet must define optimizer"):
        DeepNet().optimizer(None, {})
    with pytest.raises(NotImplementedError, match=r"^DeepNet must define predict"):
        DeepNet().predict(None, {}, {})


def test_what_is_optional_does_nothing_by_itself():
    task, batch = Task(), {"x": 1}
    assert task.metrics(None, batch, {}) == {}
    assert task.augment(batch, None, {}) is batch
    task.on_epoch_start(None, None, {}, 0)
    task.on_epoch_end(None, None, {}, 0)


@pytest.mark.parametrize("task", [Net(), DeepNet()])
def test_a_task_knows_which_optional_methods_were_written(task):
    assert task.has("metrics")
    assert not task.has("augment")
    assert not task.has("predict")


def test_a_task_is_trained_by_torch_unless_it_says_otherwise():
    assert (Task.framework, Task.clip_grad_norm, Task.amp) == ("torch", None, None)


def test_params_are_a_dict():
    params = ParamDict(lr=0.1)
    assert (params["lr"], params.get("momentum"), dict(params)) == (0.1, None, {"lr": 0.1})
    assert pickle.loads(pickle.dumps(params)) == params


@pytest.mark.parametrize(("params", "known"), [({}, "none"), ({"b": 1, "a": 2}, "a, b")])
def test_a_param_that_is_not_there_lists_those_that_are(params, known):
    with pytest.raises(UnknownParamError) as caught:
        ParamDict(params)["lr"]
    assert str(caught.value) == (
        f"the task asks for params['lr'], but the trial has: {known}. Add it to the space."
    )
    with pytest.raises(KeyError):
        ParamDict(params)["lr"]
