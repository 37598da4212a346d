from __future__ import annotations

import sys

import pytest
import torch

import cerebro
from cerebro.errors import MissingDependencyError, UsageError
from cerebro.zoo.resnet import Bottleneck


def count(tensors) -> int:
    return sum(tensor.numel() for tensor in tensors)


def test_resnet_small_has_7690826_trainable_parameters():
    model = cerebro.zoo.resnet_small(num_classes=10)
    assert count(p for p in model.parameters() if p.requires_grad) == 7_690_826


def test_its_batch_norms_keep_13568_numbers_beside_their_counters():
    model = cerebro.zoo.resnet_small()
    kept = [b for name, b in model.named_buffers() if not name.endswith("num_batches_tracked")]
    assert count(kept) == 13_568


def test_it_has_26_layers_but_for_the_shortcuts():
    layers = [
        name
        for name, module in cerebro.zoo.resnet_small().named_modules()
        if isinstance(module, torch.nn.Conv2d | torch.nn.Linear) and "shortcut" not in name
    ]
    assert len(layers) == 26


def test_every_stage_halves_the_picture():
    model, sizes = cerebro.zoo.resnet_small(), list[tuple[int, ...]]()
    for name, stage in model.named_children():
        if name.startswith("stage"):
            stage.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    model(torch.zeros(2, 3, 32, 32))
    assert sizes == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


def test_a_block_that_changes_nothing_adds_its_input():
    block = Bottleneck(8, 8, stride=1).eval()
    torch.nn.init.zeros_(block.third[1].weight)
    x = torch.rand(2, 8, 4, 4)
    torch.testing.assert_close(block(x), x)


def test_the_seed_decides_the_weights():
    models = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        models.append(cerebro.zoo.resnet_small().state_dict()["stem.0.weight"])
    assert torch.equal(models[0], models[1])
    assert not torch.equal(models[0], models[2])


def test_options_reach_the_model():
    model = cerebro.zoo.build("resnet_small", num_classes=3, in_channels=1)
    assert model(torch.zeros(2, 1, 28, 28)).shape == (2, 3)


def test_a_name_that_is_nearly_right_gets_a_hint():
    with pytest.raises(UsageError, match="Did you mean 'resnet_small'"):
        cerebro.zoo.build("resnet_smal")


@pytest.mark.parametrize("options", [{"num_classes": 0}, {"num_classes": "10"}, {"in_channels": 0}])
def test_numbers_that_make_no_model_are_refused(options):
    with pytest.raises(UsageError, match=">= 1"):
        cerebro.zoo.resnet_small(**options)


def test_without_pytorch_it_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "cerebro.zoo.resnet", raising=False)
    with pytest.raises(MissingDependencyError, match=r"pip install 'cerebro\[torch\]'"):
        cerebro.zoo.build("resnet_small")


def test_an_unknown_attribute_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'vgg'"):
        _ = cerebro.zoo.vgg
