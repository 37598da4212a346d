"""A network of dense layers only."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

from torch import nn

from cerebro.zoo.inputs import as_picture, check_classes

HIDDEN = (1024, 512, 256, 128, 64, 32)


class MLP(nn.Sequential):
    """Dense layers with ReLU between them."""


def mlp6(input_shape: Sequence[int] = (32, 32, 3), n_classes: int = 10) -> MLP:
    """Six hidden layers of 1024, 512, 256, 128, 64 and 32 with ReLU; gives logits.

    For pictures of 32 x 32 x 3 and 10 classes it has 3,846,442 parameters, which begin as
    PyTorch's own.

    Args:
        input_shape: (height, width, channels); a batch is (rows, channels, height, width).
        n_classes: Logits for each picture.

    >>> import torch
    >>> mlp6(input_shape=(28, 28, 1))(torch.zeros(2, 1, 28, 28)).shape
    torch.Size([2, 10])
    """
    height, width, channels = as_picture(input_shape)
    layers: OrderedDict[str, nn.Module] = OrderedDict(flatten=nn.Flatten())
    inputs = height * width * channels
    for number, hidden in enumerate(HIDDEN, start=1):
        layers[f"hidden{number}"] = nn.Linear(inputs, hidden)
        layers[f"relu{number}"] = nn.ReLU()
        inputs = hidden
    layers["head"] = nn.Linear(inputs, check_classes(n_classes))
    return MLP(layers)
