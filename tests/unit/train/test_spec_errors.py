"""What a spec gets wrong is told by the name of the method, and with a remedy."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from torch import nn

from cerebro.errors import UsageError, WorkerError
from cerebro.spec import MiniBatchSpec
from cerebro.train.spec.framework import SpecFramework
from cerebro.train.spec.task import SpecTask
from tests.unit.train.bare import make_call
from tests.unit.train.spec_loop import Hops, LineSpec


def net():
    return nn.Linear(4, 1)


def sgd(module=None):
    return torch.optim.SGD((module or net()).parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: None, "must return a dict of components by name, but returned a NoneType"),
        (lambda: (net(), sgd()), "but returned a tuple"),
        (lambda: {"net": net()}, r"must give an optimizer under the name 'optimizer', but gives"),
        (lambda: {"net": net(), "optimizer": "sgd"}, "must give a torch optimizer .* is a str"),
        (
            lambda: {"net": net(), "optimizer": sgd(), "second": sgd()},
            "must give one optimizer, but also gives 'second'",
        ),
        (
            lambda: {"optimizer": sgd(), "n": 1},
            r"at least one nn\.Module, but gives 'optimizer' \(SGD\), 'n' \(int\)",
        ),
        (lambda: {1: net(), "optimizer": sgd()}, "must name components with text, but one is 1"),
        (lambda: {"a.b": net(), "optimizer": sgd()}, "is 'a.b': call it a_b_"),
        (lambda: {"forward": net(), "optimizer": sgd()}, "call it forward_, for example"),
        (
            lambda: {"nets": [net()], "net": net(), "optimizer": sgd()},
            r"'nets' is a list that holds some: .* nn\.ModuleList",
        ),
        (
            lambda: {"net": nn.LazyLinear(1), "optimizer": sgd()},
            r"parameters a shape, but net\.weight has none",
        ),
    ],
)
def test_wrong_components_are_told(data, make, said):
    class Odd(LineSpec):
        def create_model_components(self, hyperparams):
            return make()

    with pytest.raises(UsageError, match=r"Odd\.create_model_components") as caught:
        Hops(Odd(), data).run(1)
    assert caught.match(said)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "must return a dict of numbers by name, but returned a NoneType"),
        (1.0, "but returned a float"),
        (({}, {}, {}), r"the pair \(model_object, metrics\), but returned a tuple of"),
        ((1.0, {}), r"returned a tuple of \(float, dict\)"),
        ({1: 1.0}, "must name its metrics with text"),
    ],
)
def test_wrong_returns_of_train_are_told(data, returned, said):
    class Odd(LineSpec):
        def train(self, model_object, minibatch, hyperparams, device):
            return returned

    with pytest.raises(UsageError, match=rf"Odd\.train {said}|{said}"):
        Hops(Odd(), data).run(1)


def test_wrong_returns_of_val_test_are_told_by_the_name_it_has(data):
    class Odd(LineSpec):
        val_test = MiniBatchSpec.val_test

        def valtest(self, model_object, minibatch, hyperparams, device):
            return [1.0]

    hops = Hops(Odd(), data).run(1)
    with pytest.raises(UsageError, match=r"Odd\.valtest must return a dict"):
        hops.evaluate()


def test_valtest_is_val_test(data):
    class Other(LineSpec):
        val_test = MiniBatchSpec.val_test
        valtest = LineSpec.val_test

    one, other = (Hops(spec, data).run(1).evaluate() for spec in (LineSpec(), Other()))
    assert one.members == other.members


def test_a_spec_without_val_test_trains_but_cannot_be_evaluated(data):
    class Silent(LineSpec):
        val_test = MiniBatchSpec.val_test

    hops = Hops(Silent(), data).run(1)
    call = make_call(params=hops.params)
    assert hops.framework.metric_names(call, data.open_shard("train", 0)) == ()
    with pytest.raises(UsageError, match="Silent must define val_test to be evaluated"):
        hops.evaluate()


def test_params_without_a_batch_size_are_refused(data):
    hops = Hops(LineSpec(), data)
    hops.params = {"lr": 0.1}
    with pytest.raises(UsageError, match=r'must have a batch_size.*"batch_size": \[32, 64\]'):
        hops.run(1)


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        ([1, 2, 3], r"the pair \(classes, probabilities\), but returned a list"),
        (torch.zeros(8), "but returned a Tensor"),
        ((torch.zeros(5), torch.zeros(8, 2)), "classes for each of the 8 rows .* but gave 5"),
        ((torch.zeros(8), 0.5), "probabilities for each of the 8 rows .* but gave a float"),
    ],
)
def test_wrong_returns_of_predict_are_told(data, returned, said):
    class Odd(LineSpec):
        def predict(self, model_object, minibatch, hyperparams, device):
            return returned

    hops = Hops(Odd(), data).run(1)
    shard = data.open_shard("val", 0)
    batch = next(hops.framework.minibatches.in_order(shard, 8, has_labels=False))
    with pytest.raises(UsageError, match=said):
        hops.framework.steps.predict(hops.model_object, batch, hops.params)


class Counting(LineSpec):
    """Writes a line to a file when it is initialized."""

    def __init__(self, path):
        self.path = path

    def initialize_worker(self):
        with open(self.path, "a") as file:
            file.write(f"{os.getpid()}\n")


def test_a_worker_is_initialized_once_in_each_process(tmp_path):
    spec = Counting(str(tmp_path / "log"))
    for _ in range(2):
        SpecFramework(SpecTask(spec), device="cpu")
    code = (
        "from tests.unit.train.test_spec_errors import Counting, SpecFramework, SpecTask\n"
        f"SpecFramework(SpecTask(Counting({spec.path!r})), device='cpu')"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    lines = (tmp_path / "log").read_text().split()
    assert len(lines) == 2
    assert lines[0] == str(os.getpid()) != lines[1]


def test_an_error_in_initialize_worker_says_where_it_comes_from():
    class Broken(LineSpec):
        def initialize_worker(self):
            raise RuntimeError("no licence")

    with pytest.raises(WorkerError, match=r"Broken\.initialize_worker failed: RuntimeError: no l"):
        SpecFramework(SpecTask(Broken()), device="cpu")
