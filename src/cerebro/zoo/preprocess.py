"""How a recipe says what becomes of pictures; PyTorch is not needed to check it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cerebro.errors import UsageError

#: What becomes of the border of a picture that is shifted or zoomed.
FILLS = ("nearest", "zero")
#: What `data.augment` may have.
AUGMENTATIONS = ("shift", "zoom", "crop", "flip", "fill")

#: What `data.preprocess` may name.
PREPROCESSES = ("unit", "resnet50")


def check_augment(augment: object) -> None:
    """Raise UsageError unless `make_augment` can carry it out.

    >>> check_augment({"flip": 1})
    Traceback (most recent call last):
    cerebro.errors.UsageError: flip must be true or false, but is 1.
    """
    if not isinstance(augment, Mapping):
        known = ", ".join(AUGMENTATIONS)
        raise UsageError(f"augment must be a mapping of {known}, but got {augment!r:.100}.")
    for name in augment:
        if name not in AUGMENTATIONS:
            raise UsageError(
                f"unknown augmentation {name!r:.100}. Known: {', '.join(AUGMENTATIONS)}."
            )
    kinds: Mapping[str, Any] = {"shift": (int, float), "crop": (int,)}
    for name, types in kinds.items():
        value: Any = augment.get(name, 0)
        if isinstance(value, bool) or not isinstance(value, types) or not value >= 0:
            raise UsageError(f"`{name} >= 0` must hold, but got {name}={value!r:.100}.")
    if not augment.get("shift", 0) < 1:
        raise UsageError(
            f"shift is a share of the picture, `shift < 1`, but got shift={augment['shift']!r}."
        )
    zoom: Any = augment.get("zoom", 0)
    if isinstance(zoom, bool) or not isinstance(zoom, (int, float)) or not 0 <= zoom < 1:
        raise UsageError(
            f"`0 <= zoom < 1` must hold, but got zoom={zoom!r:.100}: with 0.5 pictures show from "
            "0.5 to 1.5 of their height and width; leave it out for none."
        )
    if not isinstance(augment.get("flip", False), bool):
        raise UsageError(f"flip must be true or false, but is {augment['flip']!r:.100}.")
    if augment.get("fill", FILLS[0]) not in FILLS:
        raise UsageError(f"unknown fill {augment['fill']!r:.100}. Known: {', '.join(FILLS)}.")


def check_preprocess(preprocess: object) -> None:
    """Raise UsageError unless `as_floats` can carry it out.

    >>> check_preprocess({"mean": [0.5], "std": [0.0]})
    Traceback (most recent call last):
    cerebro.errors.UsageError: preprocess must be unit, resnet50, or {mean: [...], std: [...]} \
with as many numbers in both, those of std above 0, but got {'mean': [0.5], 'std': [0.0]}.
    """
    if not isinstance(preprocess, str) or preprocess not in PREPROCESSES:
        parse_standard(preprocess)


def parse_standard(preprocess: object) -> tuple[Sequence[float], Sequence[float]]:
    """Mean and standard deviation of each channel, checked.

    >>> parse_standard({"mean": [0.5], "std": [0.25]})
    ([0.5], [0.25])
    """
    if isinstance(preprocess, Mapping) and preprocess.keys() == {"mean", "std"}:
        mean, std = preprocess["mean"], preprocess["std"]
        if _are_numbers(mean) and _are_numbers(std) and len(mean) == len(std) and min(std) > 0:
            return mean, std
    raise UsageError(
        f"preprocess must be {', '.join(PREPROCESSES)}, or {{mean: [...], std: [...]}} with as "
        f"many numbers in both, those of std above 0, but got {preprocess!r:.100}."
    )


def _are_numbers(values: object) -> bool:
    return (
        isinstance(values, list | tuple)
        and bool(values)
        and all(isinstance(each, int | float) and not isinstance(each, bool) for each in values)
    )
