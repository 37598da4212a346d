from __future__ import annotations

import inspect
import sys

import pytest
import torch
from torch import nn

import cerebro
from cerebro.errors import MissingDependencyError, UsageError
from cerebro.zoo.inputs import OPTIONS

IMAGENET = {"input_shape": (224, 224, 3)}
GOLDEN = {
    "cnn": ("cnn", {}, 156_074),
    "mlp6": ("mlp6", {}, 3_846_442),
    "resnet_small": ("resnet_small", {}, 7_690_826),
    "resnet50-imagenet-100": ("resnet50", {**IMAGENET, "n_classes": 100}, 23_739_492),
    "resnet50-imagenet-1000": ("resnet50", {**IMAGENET, "n_classes": 1000}, 25_583_592),
    "resnet50-cifar-10": ("resnet50", {"input_shape": (32, 32, 3), "n_classes": 10}, 23_520_842),
}


def count(tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


@pytest.mark.parametrize("case", GOLDEN)
def test_a_model_has_as_many_parameters_as_is_documented(case):
    name, options, golden = GOLDEN[case]
    model = cerebro.zoo.build(name, **options)
    assert count(p for p in model.parameters() if p.requires_grad) == golden


@pytest.mark.parametrize("name", cerebro.zoo.MODELS)
@pytest.mark.parametrize(("shape", "classes"), [((32, 32, 3), 10), ((28, 28, 1), 1)])
def test_a_model_gives_one_logit_for_each_class(name, shape, classes):
    model = cerebro.zoo.build(name, input_shape=shape, n_classes=classes)
    height, width, channels = shape
    logits = model(torch.rand(2, channels, height, width))
    assert logits.shape == (2, classes)
    assert not torch.allclose(logits.sum(1), torch.ones(2))  # no softmax


@pytest.mark.parametrize(("name", "steps"), [("cnn", 20), ("mlp6", 20), ("resnet_small", 6)])
def test_a_model_learns_a_batch_by_heart(name, steps):
    torch.manual_seed(0)
    model = cerebro.zoo.build(name, input_shape=(16, 16, 3), n_classes=2)
    x, y = torch.rand(8, 3, 16, 16), torch.arange(8) % 2
    optimizer = torch.optim.Adam(cerebro.zoo.parameter_groups(model), lr=1e-3)
    losses = []
    for _ in range(steps):
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.9 * losses[0]


def test_lists_of_an_experiment_file_are_shapes_too():
    assert cerebro.zoo.build("cnn", [64, 64, 3], 1)(torch.rand(2, 3, 64, 64)).shape == (2, 1)


def test_the_dropout_of_cnn_is_in_front_of_its_last_layer():
    model = cerebro.zoo.cnn(dropout=0.25)
    assert model.dropout.p == 0.25
    assert [name for name, _ in model.named_children()][-2:] == ["dropout", "head"]


@pytest.mark.parametrize("name", ["cnn", "mlp6", "resnet_small"])
def test_the_seed_decides_the_weights(name):
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(cerebro.zoo.build(name, (16, 16, 3)).state_dict()["head.weight"])
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_a_name_that_is_nearly_right_gets_a_hint():
    with pytest.raises(UsageError, match=r"cnn, mlp6, resnet50, resnet_small\. Did you mean"):
        cerebro.zoo.build("resnet_smal")


def test_an_option_that_a_model_has_not_is_refused_with_those_it_has():
    with pytest.raises(UsageError, match=r"no option 'droput'\. Its options: dropout"):
        cerebro.zoo.build("cnn", droput=0.1)
    with pytest.raises(UsageError, match=r"'mlp6' has no option 'dropout'\. It has none"):
        cerebro.zoo.build("mlp6", dropout=0.1)


@pytest.mark.parametrize("name", cerebro.zoo.MODELS)
def test_a_model_takes_the_options_that_are_checked_without_it(name):
    _, _, *own = inspect.signature(getattr(cerebro.zoo, name)).parameters
    assert own == list(OPTIONS[name])


WRONG = {
    "no classes": ({"n_classes": 0}, "n_classes >= 1"),
    "classes in words": ({"n_classes": "10"}, "n_classes >= 1"),
    "two numbers": ({"input_shape": (32, 32)}, r"\(height, width, channels\)"),
    "text": ({"input_shape": "32x32"}, r"\(height, width, channels\)"),
    "no channels": ({"input_shape": (32, 32, 0)}, r"\(height, width, channels\)"),
    "too small": ({"input_shape": (32, 7, 3)}, "at least 8 x 8"),
    "all dropped": ({"dropout": 1.0}, "0 <= dropout < 1"),
}


@pytest.mark.parametrize("case", WRONG)
def test_numbers_that_make_no_model_are_refused(case):
    options, message = WRONG[case]
    with pytest.raises(UsageError, match=message):
        cerebro.zoo.build("cnn", **options)


@pytest.mark.parametrize("name", ["build", "parameter_groups"])
def test_without_pytorch_it_says_what_to_install(monkeypatch, name):
    monkeypatch.setitem(sys.modules, "torch", None)
    for module in ("resnet", "decay"):
        monkeypatch.delitem(sys.modules, f"cerebro.zoo.{module}", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cerebro\[torch\]'"):
        getattr(cerebro.zoo, name)("resnet_small")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'vgg'"):
        _ = cerebro.zoo.vgg
