"""Pictures as bytes become the numbers that models take."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from cerebro.errors import UsageError
from cerebro.zoo.preprocess import parse_standard

#: Means of blue, green and red over ImageNet: what Keras' ResNet50 is given pictures less of.
_BGR = (103.939, 116.779, 123.68)


def as_floats(pictures: Tensor, preprocess: object = "unit") -> Tensor:
    """A batch (rows, channels, height, width) as float32; numbers stay as they are.

    Args:
        pictures: Bytes from 0 to 255, or numbers.
        preprocess: "unit" divides by 255; "resnet50" turns colours round and takes ImageNet's mean
            off, as Keras does for its ResNet50; {"mean": [...], "std": [...]} divides by 255, then
            takes the mean of each channel off and divides by its standard deviation.

    >>> grey = torch.full((1, 1, 1, 1), 255, dtype=torch.uint8)
    >>> as_floats(grey).item(), as_floats(grey, {"mean": [0.5], "std": [0.25]}).item()
    (1.0, 2.0)
    """
    if pictures.is_floating_point():
        return pictures
    numbers = pictures.float()
    if preprocess == "unit":
        return numbers / 255
    if preprocess == "resnet50":
        return _standardise(numbers.flip(1), _BGR, (1.0,) * 3)
    mean, std = parse_standard(preprocess)
    return _standardise(numbers / 255, mean, std)


def _standardise(numbers: Tensor, mean: Sequence[float], std: Sequence[float]) -> Tensor:
    if numbers.shape[1] != len(mean):
        raise UsageError(
            f"preprocess must have a number for each channel, but has {len(mean)} and the pictures "
            f"have {numbers.shape[1]}."
        )
    channels = [
        (numbers[:, place] - middle) / width
        for place, (middle, width) in enumerate(zip(mean, std, strict=True))
    ]
    return torch.stack(channels, dim=1)
