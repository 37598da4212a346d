from __future__ import annotations

import math

import pytest
import torch
from torch import nn

import cerebro
from cerebro.errors import UsageError
from cerebro.zoo.resnet import KERAS_NORM, Bottleneck, Norm, Style

LARGE = {"input_shape": (224, 224, 3), "n_classes": 2}


def sizes_of_stages(model: nn.Module, side: int) -> list[tuple[int, ...]]:
    sizes = list[tuple[int, ...]]()
    for name, stage in model.named_children():
        if name.startswith("stage"):
            stage.register_forward_hook(lambda _, __, out: sizes.append(tuple(out.shape[1:])))
    with torch.no_grad():
        model.eval()(torch.zeros(1, 3, side, side))
    return sizes


def test_the_batch_norms_of_resnet_small_keep_13568_numbers_beside_their_counters():
    model = cerebro.zoo.resnet_small()
    kept = [b for name, b in model.named_buffers() if not name.endswith("num_batches_tracked")]
    assert sum(map(torch.numel, kept)) == 13_568


@pytest.mark.parametrize(("name", "layers"), [("resnet_small", 26), ("resnet50", 50)])
def test_it_has_as_many_layers_as_its_name_says_but_for_the_shortcuts(name, layers):
    found = [
        name
        for name, module in cerebro.zoo.build(name).named_modules()
        if isinstance(module, nn.Conv2d | nn.Linear) and "shortcut" not in name
    ]
    assert len(found) == layers


def test_every_stage_of_resnet_small_halves_the_picture():
    sizes = sizes_of_stages(cerebro.zoo.resnet_small(), 32)
    assert sizes == [(64, 16, 16), (128, 8, 8), (256, 4, 4), (512, 2, 2)]


def test_the_imagenet_stem_takes_a_quarter_and_stages_halve_from_the_second_on():
    sizes = sizes_of_stages(cerebro.zoo.resnet50(**LARGE), 224)
    assert sizes == [(256, 56, 56), (512, 28, 28), (1024, 14, 14), (2048, 7, 7)]


def test_the_cifar_stem_keeps_the_size():
    sizes = sizes_of_stages(cerebro.zoo.resnet50(), 32)
    assert sizes == [(256, 32, 32), (512, 16, 16), (1024, 8, 8), (2048, 4, 4)]


@pytest.mark.parametrize(("side", "stem"), [(32, "cifar"), (64, "cifar"), (96, "imagenet")])
def test_the_size_of_the_pictures_picks_the_stem_unless_told(side, stem):
    shape = (side, side, 3)
    assert hasattr(cerebro.zoo.resnet50(shape), "stem_pool") == (stem == "imagenet")
    other = "imagenet" if stem == "cifar" else "cifar"
    assert hasattr(cerebro.zoo.resnet50(shape, stem=other), "stem_pool") == (stem == "cifar")


def test_an_unknown_stem_is_refused():
    with pytest.raises(UsageError, match="Known stems: cifar, imagenet"):
        cerebro.zoo.build("resnet50", stem="tiny")


@pytest.mark.parametrize(("options", "strided"), [(LARGE, "first"), ({}, "second")])
def test_the_stride_is_where_it_is_documented(options, strided):
    block = cerebro.zoo.resnet50(**options).stage2[0]
    assert getattr(block, strided)[0].stride == (2, 2)
    assert block.shortcut[0].stride == (2, 2)
    strides = [block.first[0].stride, block.second[0].stride, block.third[0].stride]
    assert sorted(strides) == [(1, 1), (1, 1), (2, 2)]


def test_only_blocks_that_add_their_input_as_it_is_follow_bn_mom():
    model = cerebro.zoo.resnet_small(bn_mom=0.8)
    assert (model.stem[1].eps, model.stem[1].momentum) == (1e-3, 0.01)
    assert (model.stage1[0].third[1].eps, model.stage1[0].third[1].momentum) == (1e-3, 0.01)
    assert (model.stage1[1].third[1].eps, model.stage1[1].third[1].momentum) == (1e-5, 0.2)


def test_the_batch_norms_of_the_cifar_network_are_all_alike():
    norms = {
        (module.eps, module.momentum)
        for module in cerebro.zoo.resnet50().modules()
        if isinstance(module, nn.BatchNorm2d)
    }
    assert norms == {(1e-5, 0.1)}


def test_kernels_of_convolutions_begin_he_normal_and_biases_at_zero():
    torch.manual_seed(0)
    convolution = cerebro.zoo.resnet_small().stage4[1].second[0]
    assert convolution.weight.std().item() == pytest.approx(math.sqrt(2 / (512 * 9)), rel=0.01)
    assert not convolution.bias.any()


def test_a_block_that_changes_nothing_adds_its_input():
    style = Style(
        expansion=1, has_bias=True, strided=0, norm=Norm(1e-5, 0.1), outer_norm=KERAS_NORM
    )
    block = Bottleneck(8, 8, 1, style).eval()
    nn.init.zeros_(block.third[1].weight)
    x = torch.rand(2, 8, 4, 4)
    torch.testing.assert_close(block(x), x)
