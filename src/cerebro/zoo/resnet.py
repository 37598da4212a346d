"""Residual networks of bottleneck blocks."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor, nn

from cerebro.zoo.inputs import as_picture, check_classes, check_fraction, check_stem

WIDTHS = (64, 128, 256, 512)
#: Blocks in each stage.
SMALL, FIFTY = (2, 2, 2, 2), (3, 4, 6, 3)
#: Pictures up to this side get the CIFAR stem, where nobody says which.
SMALL_SIDE = 64
#: L2 in the loss, on the kernels of convolutions and dense layers.
L2_REG = 5e-5


class Norm(NamedTuple):
    """What a batch norm adds to the variance, and how much of a batch its statistics take."""

    eps: float
    momentum: float


#: Of stems and of blocks with a convolution on their shortcut: what Keras takes unless told.
KERAS_NORM = Norm(1e-3, 0.01)


@dataclass(frozen=True, slots=True, kw_only=True)
class Style:
    """How the blocks of a network are made."""

    #: A block's output is so many times as wide as its inner convolutions.
    expansion: int
    has_bias: bool
    #: Which of a block's three convolutions has its stride: 0 is the first.
    strided: int
    #: Of blocks that add their input as it is.
    norm: Norm
    #: Of the stem and all other blocks.
    outer_norm: Norm


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut; one that changes size or width has a fourth there."""

    def __init__(self, inputs: int, width: int, stride: int, style: Style) -> None:
        super().__init__()
        outputs = width * style.expansion
        is_plain = stride == 1 and inputs == outputs
        norm = style.norm if is_plain else style.outer_norm
        strides = [stride if number == style.strided else 1 for number in range(2)]
        self.first = _convolution(inputs, width, 1, strides[0], norm, style.has_bias)
        self.second = _convolution(width, width, 3, strides[1], norm, style.has_bias)
        self.third = _convolution(width, outputs, 1, 1, norm, style.has_bias)
        self.shortcut: nn.Module = nn.Identity()
        if not is_plain:
            self.shortcut = _convolution(inputs, outputs, 1, stride, norm, style.has_bias)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x))
        y = self.third(self.relu(self.second(y)))
        result: Tensor = self.relu(y + self.shortcut(x))
        return result


class ResNet(nn.Sequential):
    """A stem, stages of bottleneck blocks, the mean over the picture, and a linear layer."""

    def __init__(self, layers: OrderedDict[str, nn.Module], l2_reg: float) -> None:
        super().__init__(layers)
        #: `parameter_groups` makes weight decay of it.
        self.l2_reg = l2_reg


def resnet_small(
    input_shape: Sequence[int] = (32, 32, 3),
    n_classes: int = 10,
    *,
    l2_reg: float = L2_REG,
    bn_mom: float = 0.9,
) -> ResNet:
    """A residual network of 26 layers for pictures of about 32 x 32; gives logits.

    A 3 x 3 stem of 64 channels at full size, then four stages of two bottleneck blocks, 64, 128,
    256 and 512 channels wide, of which each halves the picture. With 10 classes and 3 channels it
    has 7,690,826 trainable parameters; the running means and variances of its batch norms are
    13,568 numbers more.

    Args:
        input_shape: (height, width, channels); a batch is (rows, channels, height, width).
        n_classes: Logits for each picture.
        l2_reg: L2 in the loss, on kernels only: see `parameter_groups`, which carries it out.
        bn_mom: Share of their running statistics that batch norms keep at each step, in blocks
            that add their input as it is; all others keep 0.99.

    >>> import torch
    >>> model = resnet_small(n_classes=10)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    picture = as_picture(input_shape)
    style = _documented(bn_mom, expansion=1)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = _convolution(picture.channels, WIDTHS[0], 3, 1, KERAS_NORM, has_bias=True)
    layers["relu"] = nn.ReLU()
    return _network(layers, style, (2, 2, 2, 2), SMALL, n_classes, l2_reg)


def resnet50(
    input_shape: Sequence[int] = (32, 32, 3),
    n_classes: int = 10,
    *,
    stem: str | None = None,
    l2_reg: float | None = None,
    bn_mom: float = 0.9,
) -> ResNet:
    """The residual network of 50 layers, with a stem for large or for small pictures; gives logits.

    With the `imagenet` stem (7 x 7, stride 2, and max pooling) it has 25,583,592 parameters for
    1000 classes and 23,739,492 for 100: convolutions have biases, and the first one of a block has
    its stride. With the `cifar` stem (3 x 3 at full size) it has 23,520,842 for 10: no biases, and
    the stride is that of the 3 x 3 convolution.

    Args:
        input_shape: (height, width, channels); a batch is (rows, channels, height, width).
        n_classes: Logits for each picture.
        stem: `cifar` or `imagenet`; by default `cifar` for pictures up to 64 x 64.
        l2_reg: L2 in the loss, on kernels only: see `parameter_groups`, which carries it out. By
            default 5e-5 with the `imagenet` stem, and none with the other.
        bn_mom: Share of their running statistics that batch norms keep at each step; with the
            `imagenet` stem only in blocks that add their input as it is, all others keep 0.99.

    >>> sum(p.numel() for p in resnet50(input_shape=(32, 32, 3)).parameters())
    23520842
    """
    picture = as_picture(input_shape)
    if stem is None:
        stem = "cifar" if max(picture.height, picture.width) <= SMALL_SIDE else "imagenet"
    check_stem("stem", stem)
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    if stem == "cifar":
        norm = _norm(bn_mom)
        style = Style(expansion=4, has_bias=False, strided=1, norm=norm, outer_norm=norm)
        layers["stem"] = _convolution(picture.channels, WIDTHS[0], 3, 1, norm, has_bias=False)
        layers["relu"] = nn.ReLU()
    else:
        style = _documented(bn_mom, expansion=4)
        layers["stem"] = _convolution(picture.channels, WIDTHS[0], 7, 2, KERAS_NORM, has_bias=True)
        layers["relu"] = nn.ReLU()
        layers["stem_pool"] = nn.MaxPool2d(3, 2, padding=1)
    if l2_reg is None:
        l2_reg = 0.0 if stem == "cifar" else L2_REG
    return _network(layers, style, (1, 2, 2, 2), FIFTY, n_classes, l2_reg)


def _documented(bn_mom: float, expansion: int) -> Style:
    norm = _norm(bn_mom)
    return Style(expansion=expansion, has_bias=True, strided=0, norm=norm, outer_norm=KERAS_NORM)


def _norm(bn_mom: float) -> Norm:
    return Norm(1e-5, round(1 - check_fraction("bn_mom", bn_mom), 12))


def _network(
    layers: OrderedDict[str, nn.Module],
    style: Style,
    strides: Sequence[int],
    blocks: Sequence[int],
    n_classes: int,
    l2_reg: float,
) -> ResNet:
    """The stages and what follows them, added to a stem."""
    l2_reg = check_fraction("l2_reg", l2_reg)
    inputs = WIDTHS[0]
    stages = zip(WIDTHS, strides, blocks, strict=True)
    for number, (width, stride, count) in enumerate(stages, start=1):
        stage = nn.Sequential()
        for block in range(count):
            stage.append(Bottleneck(inputs, width, stride if block == 0 else 1, style))
            inputs = width * style.expansion
        layers[f"stage{number}"] = stage
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    head = nn.Linear(inputs, check_classes(n_classes))
    nn.init.xavier_uniform_(head.weight)
    nn.init.zeros_(head.bias)
    layers["head"] = head
    return ResNet(layers, l2_reg)


def _convolution(
    inputs: int, outputs: int, size: int, stride: int, norm: Norm, has_bias: bool
) -> nn.Sequential:
    """A convolution that keeps the size of the picture but for its stride, and a batch norm."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=has_bias)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    if convolution.bias is not None:
        nn.init.zeros_(convolution.bias)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs, norm.eps, norm.momentum))
