"""A small convolutional network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from cerebro.zoo.inputs import as_picture, check_classes, check_fraction

FILTERS = (16, 32, 64)
HIDDEN = 128


class CNN(nn.Sequential):
    """Three convolutions with pooling, a hidden layer, and a linear one."""


def cnn(
    input_shape: Sequence[int] = (32, 32, 3), n_classes: int = 10, *, dropout: float = 0.0
) -> CNN:
    """A convolutional network of three layers and two dense ones; gives logits.

    3 x 3 convolutions of 16, 32 and 64 filters, each with ReLU and 2 x 2 max pooling, then a dense
    layer of 128 with ReLU and dropout. For pictures of 32 x 32 x 3 and 10 classes it has 156,074
    parameters. Kernels begin as Glorot's uniform numbers, biases as zeros.

    Args:
        input_shape: (height, width, channels), at least 8 x 8; a batch is (rows, channels, height,
            width).
        n_classes: Logits for each picture.
        dropout: Share of the hidden layer that is left out in each step of training.

    >>> import torch
    >>> cnn(dropout=0.1)(torch.zeros(2, 3, 32, 32)).shape
    torch.Size([2, 10])
    """
    picture = as_picture(input_shape, at_least=2 ** len(FILTERS))
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    inputs = picture.channels
    for number, filters in enumerate(FILTERS, start=1):
        layers[f"convolution{number}"] = nn.Conv2d(inputs, filters, 3, padding=1)
        layers[f"relu{number}"] = nn.ReLU()
        layers[f"pool{number}"] = nn.MaxPool2d(2)
        inputs = filters
    height, width = (side // 2 ** len(FILTERS) for side in picture[:2])
    layers["flatten"] = nn.Flatten()
    layers["hidden"] = nn.Linear(height * width * inputs, HIDDEN)
    layers["relu"] = nn.ReLU()
    layers["dropout"] = nn.Dropout(check_fraction("dropout", dropout))
    layers["head"] = nn.Linear(HIDDEN, check_classes(n_classes))
    model = CNN(layers)
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
            nn.init.zeros_(layer.bias)  # type: ignore[arg-type]
    return model
