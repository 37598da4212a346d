"""Residual networks for small pictures."""

from __future__ import annotations

from collections import OrderedDict

from torch import Tensor, nn

from cerebro.errors import UsageError

WIDTHS = (64, 128, 256, 512)


class Bottleneck(nn.Module):
    """Three convolutions and a shortcut; one that changes size or width has a fourth there."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.first = _convolution(inputs, width, 1, stride)
        self.second = _convolution(width, width, 3)
        self.third = _convolution(width, width, 1)
        is_plain = stride == 1 and inputs == width
        self.shortcut = nn.Identity() if is_plain else _convolution(inputs, width, 1, stride)
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        y = self.relu(self.first(x))
        y = self.third(self.relu(self.second(y)))
        result: Tensor = self.relu(y + self.shortcut(x))
        return result


class ResNet(nn.Sequential):
    """A stem, stages of bottleneck blocks, the mean over the picture, and a linear layer."""


def resnet_small(num_classes: int = 10, *, in_channels: int = 3) -> ResNet:
    """A residual network of 26 layers for pictures of about 32 x 32; gives logits.

    A 3 x 3 stem of 64 channels at full size, then four stages of two bottleneck blocks, 64, 128,
    256 and 512 channels wide, of which each halves the picture. With 10 classes and 3 channels it
    has 7,690,826 trainable parameters; the running means and variances of its batch norms are
    13,568 numbers more.

    Args:
        num_classes: Logits for each picture.
        in_channels: 3 for colour, 1 for grey.

    >>> import torch
    >>> model = resnet_small(num_classes=10)
    >>> model(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    for name, value in (("num_classes", num_classes), ("in_channels", in_channels)):
        if not isinstance(value, int) or value < 1:
            raise UsageError(f"`{name} >= 1` must hold, but got {name}={value!r}.")
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    layers["stem"] = _convolution(in_channels, WIDTHS[0], 3)
    layers["relu"] = nn.ReLU()
    inputs = WIDTHS[0]
    for number, width in enumerate(WIDTHS, start=1):
        layers[f"stage{number}"] = nn.Sequential(
            Bottleneck(inputs, width, stride=2), Bottleneck(width, width, stride=1)
        )
        inputs = width
    layers["pool"] = nn.AdaptiveAvgPool2d(1)
    layers["flatten"] = nn.Flatten()
    layers["head"] = nn.Linear(inputs, num_classes)
    return ResNet(layers)


def _convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Sequential:
    """A convolution that keeps the size of the picture but for its stride, and a batch norm."""
    convolution = nn.Conv2d(inputs, outputs, size, stride, padding=size // 2)
    nn.init.kaiming_normal_(convolution.weight, nonlinearity="relu")
    nn.init.zeros_(convolution.bias)  # type: ignore[arg-type]
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))
